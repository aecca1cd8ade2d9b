/* Authentication of ranks: the pre-shared key, or the certificates. */
#include "wire/tls.h"

#ifdef DDP_USE_OPENSSL
#define DDP__TLS_SHA256      "\x13\x01" /* TLS_AES_128_GCM_SHA256: has the hash of a pre-shared key */
#define DDP__TLS_LONGEST_KEY 4096

/* ---- pre-shared key ---- */

static SSL_SESSION *ddp__tls_key_session(SSL *ssl, const ddp__tls_keys *k)
{
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, (const unsigned char *)DDP__TLS_SHA256);
    SSL_SESSION *ticket = SSL_SESSION_new();

    if (ticket && cipher && SSL_SESSION_set1_master_key(ticket, k->psk, sizeof k->psk) &&
        SSL_SESSION_set_cipher(ticket, cipher) && SSL_SESSION_set_protocol_version(ticket, TLS1_3_VERSION))
        return ticket;
    SSL_SESSION_free(ticket);
    return NULL;
}

static const ddp__tls_keys *ddp__tls_keys_of(SSL *ssl)
{
    return (const ddp__tls_keys *)SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
}

static int ddp__tls_offer_key(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *size,
                              SSL_SESSION **ticket)
{
    const ddp__tls_keys *k = ddp__tls_keys_of(ssl);

    *ticket = NULL;
    if (md && !EVP_MD_is_a(md, "SHA256")) return 1; /* a pre-shared key works with that hash only */
    *ticket = ddp__tls_key_session(ssl, k);
    *id = (const unsigned char *)k->identity;
    *size = strlen(k->identity);
    return *ticket != NULL;
}

static int ddp__tls_find_key(SSL *ssl, const unsigned char *id, size_t size, SSL_SESSION **ticket)
{
    const ddp__tls_keys *k = ddp__tls_keys_of(ssl);
    ddp__tls_session *s = (ddp__tls_session *)SSL_get_app_data(ssl);

    *ticket = NULL;
    if (size == strlen(k->identity) && !memcmp(id, k->identity, size)) {
        *ticket = ddp__tls_key_session(ssl, k);
        return *ticket != NULL;
    }
    ddp__tls_say(s, "belongs to another run: give every rank the same DREAMDDP_RUN_ID");
    return 1;
}

/* Reads a secret file, which only its owner may read: at most room bytes. *n receives the size. */
static ddp_status ddp__tls_read_secret(const char *path, unsigned char *b, size_t room, size_t *n,
                                       ddp_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC), mine;
    ssize_t got = 1;

    *n = 0;
    if (fd < 0 || fstat(fd, &st) < 0) {
        int why = errno;
        if (fd >= 0) close(fd);
        return ddp__fail(err, DDP_IO, "%.200s: %s", path, strerror(why));
    }
    mine = st.st_uid == geteuid();
    if (S_ISREG(st.st_mode) && (st.st_mode & (mine ? 077 : 07))) {
        close(fd);
        return ddp__fail(err, DDP_ARG,
                         "%.200s: other users can read this key (mode %04o): run chmod 600 on it, and create "
                         "a new key if another user may have read it",
                         path, (unsigned)st.st_mode & 0777);
    }
    while (b && got > 0 && *n < room) {
        do got = read(fd, b + *n, room - *n);
        while (got < 0 && errno == EINTR);
        if (got > 0) *n += (size_t)got;
    }
    mine = errno;
    close(fd);
    if (got < 0) return ddp__fail(err, DDP_IO, "%.200s: %s", path, strerror(mine));
    return DDP_OK;
}

/* The key is a digest of the file, so that a file may have any length and form. */
static ddp_status ddp__tls_load_key(ddp__tls_keys *k, const char *path, ddp_error *err)
{
    static const char label[] = "dreamddp pre-shared key 1";
    unsigned char b[sizeof label + DDP__TLS_LONGEST_KEY + 1];
    size_t n = 0;
    ddp_status bad;

    memcpy(b, label, sizeof label);
    bad = ddp__tls_read_secret(path, b + sizeof label, DDP__TLS_LONGEST_KEY + 1, &n, err);
    if (!bad && n > DDP__TLS_LONGEST_KEY)
        bad = ddp__fail(err, DDP_ARG, "%.200s is longer than %d bytes: use a key of 32 random bytes", path,
                        DDP__TLS_LONGEST_KEY);
    while (n && isspace(b[sizeof label + n - 1])) n--;
    if (!bad && n < DDP__TLS_LEAST_KEY)
        bad = ddp__fail(err, DDP_ARG,
                        "%.200s has %zu bytes, but a pre-shared key needs at least %d: create one with "
                        "openssl rand -hex 32",
                        path, n, DDP__TLS_LEAST_KEY);
    if (!bad && !EVP_Digest(b, sizeof label + n, k->psk, NULL, EVP_sha256(), NULL))
        bad = ddp__fail(err, DDP_FAILED, "OpenSSL cannot digest a key");
    OPENSSL_cleanse(b, sizeof b);
    if (bad) return bad;
    SSL_CTX_set_psk_use_session_callback(k->ctx, ddp__tls_offer_key);
    SSL_CTX_set_psk_find_session_callback(k->ctx, ddp__tls_find_key);
    /* refuse a server that sends a certificate instead of using the key: no authority is trusted */
    SSL_CTX_set_verify(k->ctx, SSL_VERIFY_PEER, NULL);
    return DDP_OK;
}

/* ---- certificates ---- */

static int ddp__tls_no_passphrase(char *b, int room, int writing, void *user)
{
    (void)b;
    (void)room;
    (void)writing;
    (void)user;
    return -1; /* otherwise OpenSSL would ask at the terminal */
}

static ddp_status ddp__tls_unreadable(const char *path, const char *what, ddp_error *err)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = ERR_reason_error_string(code);
    int why = ERR_SYSTEM_ERROR(ERR_peek_error()) ? ERR_GET_REASON(ERR_peek_error()) : 0;

    ERR_clear_error();
    if (why) return ddp__fail(err, DDP_IO, "%.200s: %s", path, strerror(why));
    return ddp__fail(err, DDP_FORMAT, "%.200s: cannot read a %s in PEM without a passphrase (%s)", path, what,
                     text ? text : "unreadable");
}

static ddp_status ddp__tls_load_certificates(ddp__tls_keys *k, const ddp__tls_files *f, ddp_error *err)
{
    size_t none;

    SSL_CTX_set_default_passwd_cb(k->ctx, ddp__tls_no_passphrase);
    if (!SSL_CTX_load_verify_file(k->ctx, f->ca))
        return ddp__tls_unreadable(f->ca, "certificate authority", err);
    if (SSL_CTX_use_certificate_chain_file(k->ctx, f->cert) != 1)
        return ddp__tls_unreadable(f->cert, "certificate", err);
    DDP__TRY(ddp__tls_read_secret(f->key, NULL, 0, &none, err));
    if (SSL_CTX_use_PrivateKey_file(k->ctx, f->key, SSL_FILETYPE_PEM) != 1) {
        if (ERR_GET_REASON(ERR_peek_last_error()) != X509_R_KEY_VALUES_MISMATCH)
            return ddp__tls_unreadable(f->key, "private key", err);
        ERR_clear_error();
        return ddp__fail(err, DDP_ARG, "%.150s is not the key of %.150s", f->key, f->cert);
    }
    SSL_CTX_set_verify(k->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return DDP_OK;
}

/* ---- opening ---- */

static ddp_status ddp__tls_prepare(ddp__tls_keys *k, const ddp__tls_files *f, ddp_error *err)
{
    k->ctx = SSL_CTX_new(TLS_method());
    if (!k->ctx) return ddp__fail(err, DDP_MEMORY, "out of memory for TLS");
    if (!SSL_CTX_set_min_proto_version(k->ctx, TLS1_3_VERSION) ||
        !SSL_CTX_set_max_proto_version(k->ctx, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(k->ctx, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"))
        return ddp__fail(err, DDP_UNSUPPORTED,
                         "this OpenSSL does not support TLS 1.3 with AES-GCM: install a full build");
    SSL_CTX_set_app_data(k->ctx, k);
    SSL_CTX_set_session_cache_mode(k->ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(k->ctx, 0); /* sessions are not resumed */
    SSL_CTX_set_options(k->ctx, SSL_OP_NO_TICKET);
    /* a waiting record is already sealed: the next call may pass other memory */
    SSL_CTX_set_mode(k->ctx, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    k->by_key = f->psk != NULL;
    return f->psk ? ddp__tls_load_key(k, f->psk, err) : ddp__tls_load_certificates(k, f, err);
}
#endif /* DDP_USE_OPENSSL */

ddp_status ddp__tls_open(const ddp__tls_files *f, uint64_t run_id, ddp__tls **out, ddp_error *err)
{
    int parts = (f->ca != NULL) + (f->cert != NULL) + (f->key != NULL);

    *out = NULL;
    if (!f->psk && !parts) return DDP_OK;
    if (f->psk && parts)
        return ddp__fail(err, DDP_ARG, "--tls-psk and certificates cannot be used together: choose one");
    if (parts && parts < 3)
        return ddp__fail(err, DDP_ARG,
                         "--tls-%s is missing: certificates need --tls-ca, --tls-cert and --tls-key",
                         !f->ca     ? "ca"
                         : !f->cert ? "cert"
                                    : "key");
#ifdef DDP_USE_OPENSSL
    {
        ddp__tls_keys *k = (ddp__tls_keys *)ddp__calloc(1, sizeof *k);
        ddp_status bad;

        if (!k) return ddp__fail(err, DDP_MEMORY, "out of memory for TLS");
        snprintf(k->identity, sizeof k->identity, "dreamddp %016" PRIx64, run_id);
        bad = ddp__tls_plug(k) ? ddp__tls_prepare(k, f, err)
                               : ddp__fail(err, DDP_MEMORY, "out of memory for TLS");
        ERR_clear_error();
        if (bad)
            ddp__tls_free(&k->base);
        else
            *out = &k->base;
        return bad;
    }
#else
    (void)run_id;
    return ddp__fail(err, DDP_UNSUPPORTED,
                     "this program was built without TLS: compile it with -DDDP_USE_OPENSSL "
                     "-lssl -lcrypto (OpenSSL 3)");
#endif
}

void ddp__tls_free(ddp__tls *t)
{
    if (t) t->table->free(t);
}
