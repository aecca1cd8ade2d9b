/* Keys and certificates for one test run, in a separate folder. Include after dreamddp.h. */
#ifndef TLS_LAB_H
#define TLS_LAB_H

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

typedef struct lab_paths {
    char psk[64], ca[64], cert[64], key[64];
} lab_paths;

static char lab_folder[40];

static const char *lab_path(char *out, const char *name)
{
    snprintf(out, 64, "%.39s/%.22s", lab_folder, name);
    return out;
}

static void lab_write(const char *name, const char *text, unsigned mode)
{
    char path[64];
    FILE *f = fopen(lab_path(path, name), "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, (mode_t)mode), 0);
}

static void lab_write_pem(const char *name, X509 *cert, EVP_PKEY *key)
{
    char path[64];
    FILE *f = fopen(lab_path(path, name), "w");

    assert_non_null(f);
    if (cert) assert_int_equal(PEM_write_X509(f, cert), 1);
    if (key) assert_int_equal(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
}

static void lab_extend(X509 *cert, int nid, const char *value)
{
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, NULL, nid, value);

    assert_non_null(e);
    X509_add_ext(cert, e, -1);
    X509_EXTENSION_free(e);
}

/* Creates NAME.pem and NAME.key; common name, alternative names ("DNS:rank-1,DNS:rank-2") or NULL; signed by
 * the authority issuer, or self-signed if issuer is NULL; hours < 0: expired for that time. */
static void lab_certificate(const char *file, const char *common, const char *names, const char *issuer,
                            int hours)
{
    EVP_PKEY *key = EVP_EC_gen("P-256"), *by_key = key;
    X509 *cert = X509_new(), *by = cert;
    char name[64], path[64];
    FILE *f;

    assert_non_null(key);
    if (issuer) {
        snprintf(name, sizeof name, "%s.pem", issuer);
        f = fopen(lab_path(path, name), "r");
        assert_non_null(f);
        by = PEM_read_X509(f, NULL, NULL, NULL);
        fclose(f);
        snprintf(name, sizeof name, "%s.key", issuer);
        f = fopen(lab_path(path, name), "r");
        assert_non_null(f);
        by_key = PEM_read_PrivateKey(f, NULL, NULL, NULL);
        fclose(f);
    }
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), (long)(strlen(file) + 1));
    X509_gmtime_adj(X509_getm_notBefore(cert), -86400);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600L * hours);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)common,
                               -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(by));
    if (!issuer) lab_extend(cert, NID_basic_constraints, "critical,CA:TRUE");
    if (names) lab_extend(cert, NID_subject_alt_name, names);
    assert_true(X509_sign(cert, by_key, EVP_sha256()) > 0);
    snprintf(name, sizeof name, "%s.pem", file);
    lab_write_pem(name, cert, NULL);
    snprintf(name, sizeof name, "%s.key", file);
    lab_write_pem(name, NULL, key);
    if (issuer) {
        X509_free(by);
        EVP_PKEY_free(by_key);
    }
    X509_free(cert);
    EVP_PKEY_free(key);
}

/* The files of a rank: a key (psk), or the certificate of that name under ca. */
static ddp__tls_files lab_files(lab_paths *p, const char *psk, const char *ca, const char *cert)
{
    ddp__tls_files f;
    char name[40];

    memset(&f, 0, sizeof f);
    if (psk) f.psk = lab_path(p->psk, psk);
    if (ca) {
        snprintf(name, sizeof name, "%s.pem", ca);
        f.ca = lab_path(p->ca, name);
    }
    if (cert) {
        snprintf(name, sizeof name, "%s.pem", cert);
        f.cert = lab_path(p->cert, name);
        snprintf(name, sizeof name, "%s.key", cert);
        f.key = lab_path(p->key, name);
    }
    return f;
}

static DDP__UNUSED ddp__tls *lab_open(const char *psk, const char *ca, const char *cert, uint64_t run)
{
    lab_paths p;
    ddp__tls_files f = lab_files(&p, psk, ca, cert);
    ddp__tls *t = NULL;
    ddp_error err;

    if (ddp__tls_open(&f, run, &t, &err)) fail_msg("%s", err.msg);
    return t;
}

static int lab_begin(void **state)
{
    (void)state;
    snprintf(lab_folder, sizeof lab_folder, "/tmp/dreamddp_tls_XXXXXX");
    if (!mkdtemp(lab_folder)) return -1;
    lab_write("run.key", "6b1d4f0c9a7e8d25b3f1c0a4e5968712233445566778899aabbccddeeff00112\n", 0600);
    lab_write("other.key", "00000000000000000000000000000000000000000000000000000000000000ff\n", 0600);
    lab_certificate("ca", "the run", NULL, NULL, 24);
    lab_certificate("rank-0", "rank-0", NULL, "ca", 24);
    lab_certificate("rank-1", "anything", "DNS:rank-1", "ca", 24);
    lab_certificate("rank-2", "anything", "DNS:rank-2,DNS:rank-7", "ca", 24);
    lab_certificate("expired", "rank-1", NULL, "ca", -1);
    lab_certificate("ca2", "the run", NULL, NULL, 24);
    lab_certificate("foreign", "rank-1", NULL, "ca2", 24);
    lab_certificate("join-5", "join-5", NULL, "ca", 24);
    lab_certificate("join-b", "anything", "DNS:rank-3,DNS:join-b.7", "ca", 24);
    lab_certificate("host", "rank-1", "DNS:host-1,DNS:rank-01,DNS:rank-,DNS:join-", "ca", 24);
    lab_certificate("star", "rank-1", "DNS:*.example", "ca", 24);
    return 0;
}

static int lab_end(void **state)
{
    char command[80];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", lab_folder);
    return system(command);
}

#endif /* TLS_LAB_H */
