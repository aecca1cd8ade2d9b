/* TLS streams. OpenSSL reads and writes through a custom BIO that raises no SIGPIPE and never blocks. */
#include "wire/socket.h"
#include "wire/tls.h"

#ifdef DDP_USE_OPENSSL
/* ---- the socket, as OpenSSL sees it ---- */

static int ddp__tls_bio_write(BIO *b, const char *bytes, int n)
{
    ddp__tls_session *s = (ddp__tls_session *)BIO_get_data(b);
    struct iovec iov;
    long did;

    BIO_clear_retry_flags(b);
    iov.iov_base = (char *)(uintptr_t)bytes;
    iov.iov_len = (size_t)n;
    did = ddp__stream_send(NULL, s->fd, &iov, 1);
    if (did > 0) return (int)did;
    if (did == 0)
        BIO_set_retry_write(b);
    else
        s->cause = errno;
    return -1;
}

static int ddp__tls_bio_read(BIO *b, char *bytes, int n)
{
    ddp__tls_session *s = (ddp__tls_session *)BIO_get_data(b);
    size_t here = (size_t)n;

    BIO_clear_retry_flags(b);
    if (s->from == s->to) {
        long did = ddp__stream_recv(NULL, s->fd, s->in, sizeof s->in);
        if (did == 0) BIO_set_retry_read(b);
        if (did < 0) s->cause = errno;
        if (did <= 0) return -1;
        s->from = 0;
        s->to = (size_t)did;
        for (size_t i = 0; i < s->to && s->seen < sizeof s->first; i++) s->first[s->seen++] = s->in[i];
    }
    if (here > s->to - s->from) here = s->to - s->from;
    memcpy(bytes, s->in + s->from, here);
    s->from += here;
    return (int)here;
}

static long ddp__tls_bio_ctrl(BIO *b, int what, long number, void *ptr)
{
    (void)b;
    (void)number;
    (void)ptr;
    return what == BIO_CTRL_FLUSH ? 1 : 0;
}

/* ---- errors, as the end of a message about the peer ---- */

void ddp__tls_say(ddp__tls_session *s, const char *fmt, ...)
{
    va_list args;

    if (s->why[0]) return;
    va_start(args, fmt);
    ddp__format_list(s->why, sizeof s->why, fmt, args);
    va_end(args);
}

/* Reports the alert with which the peer closed. */
static void ddp__tls_say_alert(ddp__tls_session *s, int alert)
{
    if (alert == SSL_AD_PROTOCOL_VERSION) {
        ddp__tls_say(s, "does not support TLS 1.3: give every rank --tls-psk or certificates, or none");
    } else if (s->by_key && (alert == SSL_AD_DECRYPT_ERROR || alert == SSL_AD_ILLEGAL_PARAMETER)) {
        ddp__tls_say(s, "has a different pre-shared key: give every rank the same --tls-psk file");
    } else if (s->by_key && alert == SSL_AD_HANDSHAKE_FAILURE) {
        ddp__tls_say(s, "belongs to another run or uses certificates: give every rank the same "
                        "DREAMDDP_RUN_ID and --tls-psk");
    } else {
        ddp__tls_say(s, "refused our TLS handshake (%s)", SSL_alert_desc_string_long(alert));
    }
}

static void ddp__tls_explain(ddp__tls_session *s)
{
    unsigned long code = ERR_peek_last_error();
    int reason = ERR_GET_REASON(code);
    long verdict = SSL_get_verify_result(s->ssl);

    if (verdict != X509_V_OK && s->by_key) {
        ddp__tls_say(s, "uses a certificate, but this rank uses a pre-shared key: give every rank --tls-psk");
    } else if (verdict != X509_V_OK) {
        ddp__tls_say(s, "has an invalid certificate: %s", X509_verify_cert_error_string(verdict));
    } else if (ERR_GET_LIB(code) != ERR_LIB_SSL) {
        ddp__tls_say(s, "broke the TLS handshake");
    } else if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
        ddp__tls_say(s, "has no certificate: give every rank --tls-cert and --tls-key");
    } else if (reason == SSL_R_BINDER_DOES_NOT_VERIFY) {
        ddp__tls_say(s, "has a different pre-shared key: give every rank the same --tls-psk file");
    } else if (reason >= SSL_AD_REASON_OFFSET) {
        ddp__tls_say_alert(s, reason - SSL_AD_REASON_OFFSET);
    } else if (!s->settled && s->seen && s->first[0] != 21 && s->first[0] != 22) {
        ddp__tls_say(s, memcmp(s->first, "dreamddp", s->seen) ? "does not speak TLS"
                                                              : "is a rank without TLS: give it "
                                                                "--tls-psk or certificates too");
    } else {
        const char *text = ERR_reason_error_string(code);
        ddp__tls_say(s, "broke the TLS handshake (%s)", text ? text : "unknown reason");
    }
}

/* Handles a call that returned n <= 0. Returns 0 if the call must be repeated, else -1 and errno. */
static int ddp__tls_outcome(ddp__tls_session *s, int n, int *wait_for)
{
    switch (SSL_get_error(s->ssl, n)) {
    case SSL_ERROR_WANT_READ:
        *wait_for = POLLIN;
        return 0;
    case SSL_ERROR_WANT_WRITE:
        *wait_for = POLLOUT;
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        s->broken = ECONNRESET;
        break;
    case SSL_ERROR_SYSCALL:
        s->broken = s->cause ? s->cause : ECONNRESET;
        break;
    default:
        s->broken = EPROTO;
        ddp__tls_explain(s);
        /* notify a dreamddp rank without TLS, because OpenSSL sends nothing to unknown programs */
        if (s->server && s->seen == sizeof s->first && !memcmp(s->first, "dreamddp", s->seen))
            ddp__stream_no_tls(s->fd);
    }
    ERR_clear_error();
    errno = s->broken;
    return -1;
}

/* ---- sessions ---- */

static ddp__tls_session *ddp__tls_find(ddp__tls *t, int fd)
{
    ddp__tls_keys *k = (ddp__tls_keys *)(void *)t;

    return fd >= 0 && fd < ddp__count(k->session) ? k->session[fd] : NULL;
}

/* Returns a usable session, or NULL and errno. Clears the error queue of OpenSSL. */
static ddp__tls_session *ddp__tls_usable(ddp__tls *t, int fd)
{
    ddp__tls_session *s = ddp__tls_find(t, fd);

    errno = s ? s->broken : EPROTO;
    if (!s || s->broken) return NULL;
    ERR_clear_error();
    s->cause = 0;
    return s;
}

static void ddp__tls_leave(ddp__tls *t, int fd)
{
    ddp__tls_keys *k = (ddp__tls_keys *)(void *)t;
    ddp__tls_session *s = ddp__tls_find(t, fd);

    if (!s) return;
    SSL_free(s->ssl);
    OPENSSL_cleanse(s, sizeof *s);
    DDP_FREE(s);
    k->session[fd] = NULL;
}

/* Extends the list for a descriptor. Returns 0 if memory is short. */
static int ddp__tls_room(ddp__tls_keys *k, int fd)
{
    if (!ddp__reserve(k->session, fd + 1)) return 0;
    while (ddp__count(k->session) <= fd) stbds_arrput(k->session, NULL);
    return 1;
}

static int ddp__tls_begin(ddp__tls *t, int fd, int server)
{
    ddp__tls_keys *k = (ddp__tls_keys *)(void *)t;
    ddp__tls_session *s, *old;
    BIO *b;

    if (!ddp__tls_room(k, fd)) return -1;
    s = (ddp__tls_session *)ddp__calloc(1, sizeof *s);
    if (!s) return -1;
    old = k->session[fd];
    if (old) {
        s->to = old->to - old->from;
        memcpy(s->in, old->in + old->from, s->to);
    }
    ddp__tls_leave(t, fd);
    s->fd = fd;
    s->server = server;
    s->by_key = k->by_key;
    s->read_for = POLLIN;
    s->write_for = POLLOUT;
    s->ssl = SSL_new(k->ctx);
    b = BIO_new(k->method);
    if (!s->ssl || !b) {
        SSL_free(s->ssl);
        BIO_free(b);
        DDP_FREE(s);
        return -1;
    }
    BIO_set_data(b, s);
    BIO_set_init(b, 1);
    SSL_set_bio(s->ssl, b, b);
    SSL_set_app_data(s->ssl, s);
    if (server)
        SSL_set_accept_state(s->ssl);
    else
        SSL_set_connect_state(s->ssl);
    if (server && s->by_key)
        SSL_set_verify(s->ssl, SSL_VERIFY_NONE, NULL); /* the peer must not send a
                                                                             * certificate */
    k->session[fd] = s;
    return 0;
}

/* Checks the peer after the handshake. Without the key OpenSSL falls back to certificates, which the side
 * with the key must not trust. */
static int ddp__tls_settle(ddp__tls_session *s)
{
    if (s->settled) return 1;
    if (s->by_key && !SSL_session_reused(s->ssl)) {
        ddp__tls_say(s, "did not prove that it has the pre-shared key");
        errno = s->broken = EPROTO;
        return -1;
    }
    s->settled = 1;
    return 1;
}

static int ddp__tls_shake(ddp__tls *t, int fd)
{
    ddp__tls_session *s = ddp__tls_usable(t, fd);
    int n;

    if (!s) return -1;
    if (s->settled) return 1;
    n = SSL_do_handshake(s->ssl);
    if (n == 1) {
        s->read_for = POLLIN;
        return ddp__tls_settle(s);
    }
    return ddp__tls_outcome(s, n, &s->read_for);
}

static long ddp__tls_recv(ddp__tls *t, int fd, void *buf, size_t bytes)
{
    ddp__tls_session *s = ddp__tls_usable(t, fd);
    size_t got = 0;

    if (!s) return -1;
    while (got < bytes) {
        size_t here = bytes - got > INT_MAX ? INT_MAX : bytes - got;
        int n = SSL_read(s->ssl, (char *)buf + got, (int)here);
        if (SSL_is_init_finished(s->ssl) && ddp__tls_settle(s) < 0) return -1;
        if (n <= 0) {
            int end = ddp__tls_outcome(s, n, &s->read_for);
            return got ? (long)got : end;
        }
        s->read_for = POLLIN;
        got += (size_t)n;
    }
    return (long)got;
}

/* Seals s->held bytes as a record, unless already done, and sends it. Returns 1, 0 if it would block, or
 * -1. */
static int ddp__tls_flush(ddp__tls_session *s, const void *bytes)
{
    int n;

    if (!s->held) return 1;
    n = SSL_write(s->ssl, bytes, (int)s->held);
    if (n <= 0) return ddp__tls_outcome(s, n, &s->write_for);
    s->held = 0;
    s->write_for = POLLOUT;
    return 1;
}

/* A record is sealed once and must be sent unchanged, but the caller may change bytes that were not taken. Of
 * a blocked record all bytes but the last therefore count as taken: the caller repeats the last one until the
 * record is sent. */
static long ddp__tls_send(ddp__tls *t, int fd, const struct iovec *iov, int count)
{
    ddp__tls_session *s = ddp__tls_usable(t, fd);
    size_t at = 0;
    long taken = 0;
    int i = 0, left;

    if (!s) return -1;
    if (s->held) {
        left = ddp__tls_flush(s, s->out);
        if (left <= 0) return left;
        while (i < count && !iov[i].iov_len) i++;
        taken = 1;
        at = 1; /* the last byte of that record */
    }
    for (;;) {
        const void *record = s->out;
        size_t n = 0;
        if (i < count && iov[i].iov_len - at >= sizeof s->out) { /* without a copy */
            record = (const char *)iov[i].iov_base + at;
            n = sizeof s->out;
            at += n;
        }
        while (i < count && n < sizeof s->out) {
            size_t here = iov[i].iov_len - at;
            if (here > sizeof s->out - n) here = sizeof s->out - n;
            if (here) memcpy(s->out + n, (const char *)iov[i].iov_base + at, here);
            n += here;
            at += here;
            if (at < iov[i].iov_len) continue;
            at = 0;
            i++;
        }
        if (!n) return taken;
        s->held = n;
        left = ddp__tls_flush(s, record);
        if (left < 0) return -1;
        if (left == 0) return taken + (long)n - 1;
        taken += (long)n;
    }
}

static int ddp__tls_events(ddp__tls *t, int fd, int want)
{
    const ddp__tls_session *s = ddp__tls_find(t, fd);
    int events = 0;

    if (!s) return want;
    if (want & POLLIN) events |= s->read_for;
    if (want & POLLOUT) events |= s->write_for;
    return events;
}

static int ddp__tls_ready(ddp__tls *t, int fd)
{
    const ddp__tls_session *s = ddp__tls_find(t, fd);

    return s && !s->broken && (s->from < s->to || SSL_pending(s->ssl) > 0);
}

/* Returns the certificate of a peer after its handshake. The caller frees it. Returns NULL without a
 * certificate, with *good = 1 if a key is used, which is valid for every name. */
static X509 *ddp__tls_certificate(ddp__tls *t, int fd, int *good, char *why)
{
    ddp__tls_session *s = ddp__tls_find(t, fd);
    X509 *cert = NULL;

    *good = 0;
    if (!s || !s->settled) {
        snprintf(why, DDP__STREAM_TEXT, "has not finished its TLS handshake");
    } else if (s->by_key) {
        *good = 1;
    } else {
        cert = SSL_get1_peer_certificate(s->ssl);
        if (!cert) snprintf(why, DDP__STREAM_TEXT, "has no certificate");
    }
    return cert;
}

static void ddp__tls_unnamed(X509 *cert, const char *name, char *why)
{
    char subject[64] = "";

    if (X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, subject, (int)sizeof subject) <
        0)
        subject[0] = 0;
    for (char *c = subject; *c; c++)
        if (!isprint((unsigned char)*c)) *c = '?'; /* the issuer may allow any characters */
    snprintf(why, DDP__STREAM_TEXT, "has a certificate of '%s' that does not name %s", subject, name);
}

static int ddp__tls_may_be(ddp__tls *t, int fd, const char *name, char *why)
{
    int good;
    X509 *cert = ddp__tls_certificate(t, fd, &good, why);

    if (!cert) return good;
    good = X509_check_host(cert, name, 0, X509_CHECK_FLAG_NO_WILDCARDS, NULL) == 1;
    if (!good) ddp__tls_unnamed(cert, name, why);
    X509_free(cert);
    ERR_clear_error();
    return good;
}

/* Parses one name of a certificate: of a rank (*id, the lowest) or of a joining worker. */
static void ddp__tls_join_name(const char *text, size_t n, int *id, char *name)
{
    size_t i, digits = 0;
    long rank = 0;

    if (n > 5 && n < DDP__STREAM_NAME && !memcmp(text, "join-", 5) && !name[0]) {
        for (i = 0; i < n && (isalnum((unsigned char)text[i]) || strchr("-_.", text[i])); i++) {
        }
        if (i < n) return;
        memcpy(name, text, n);
        name[n] = 0;
    }
    if (n < 6 || n > 9 || memcmp(text, "rank-", 5)) return;
    for (i = 5; i < n && isdigit((unsigned char)text[i]); i++, digits++) rank = 10 * rank + (text[i] - '0');
    if (i == n && (digits == 1 || text[5] != '0') && (*id < 0 || rank < *id)) *id = (int)rank;
}

static int ddp__tls_may_join(ddp__tls *t, int fd, int *id, char *name, char *why)
{
    int good, i;
    char common[DDP__STREAM_NAME];
    X509 *cert = ddp__tls_certificate(t, fd, &good, why);
    GENERAL_NAMES *names;

    if (!cert) return good;
    names = (GENERAL_NAMES *)X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    for (i = 0, good = 0; names && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *g = sk_GENERAL_NAME_value(names, i);
        if (g->type != GEN_DNS) continue;
        good = 1; /* then the common name does not count */
        ddp__tls_join_name((const char *)ASN1_STRING_get0_data(g->d.dNSName),
                           (size_t)ASN1_STRING_length(g->d.dNSName), id, name);
    }
    GENERAL_NAMES_free(names);
    i = X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, common, (int)sizeof common);
    if (!good && i > 0) ddp__tls_join_name(common, (size_t)i, id, name);
    good = *id >= 0 || name[0];
    if (!good) ddp__tls_unnamed(cert, "a rank-R or join-NAME", why);
    if (name[0]) *id = -1;
    X509_free(cert);
    ERR_clear_error();
    return good;
}

static ddp__tls *ddp__tls_part(ddp__tls *t, int fd)
{
    ddp__tls_keys *k = (ddp__tls_keys *)(void *)t, *own;
    ddp__tls_session *s = ddp__tls_find(t, fd);

    if (!s) return NULL;
    own = (ddp__tls_keys *)ddp__calloc(1, sizeof *own);
    if (!own) return NULL;
    if (!ddp__tls_room(own, fd)) {
        DDP_FREE(own);
        return NULL;
    }
    own->base = k->base;
    own->by_key = k->by_key;
    own->session[fd] = s;
    k->session[fd] = NULL;
    return &own->base;
}

static const char *ddp__tls_why(ddp__tls *t, int fd)
{
    const ddp__tls_session *s = ddp__tls_find(t, fd);

    return s && s->broken == EPROTO && s->why[0] ? s->why : NULL;
}

static void ddp__tls_end(ddp__tls *t, int fd)
{
    ddp__tls_session *s = ddp__tls_usable(t, fd);

    if (s && s->settled) {
        double until = ddp_now() + 0.2;
        while (ddp__tls_flush(s, s->out) == 0 && ddp__fd_wait(fd, s->write_for, until)) {
        }
        if (!s->held && !s->broken) SSL_shutdown(s->ssl);
        ERR_clear_error();
    }
    ddp__tls_leave(t, fd);
}

static void ddp__tls_destroy(ddp__tls *t)
{
    ddp__tls_keys *k = (ddp__tls_keys *)(void *)t;

    for (int i = 0; i < ddp__count(k->session); i++) ddp__tls_leave(t, i);
    ddp__array_free(k->session);
    SSL_CTX_free(k->ctx);
    BIO_meth_free(k->method);
    OPENSSL_cleanse(k, sizeof *k);
    DDP_FREE(k);
}

static const ddp__tls_table ddp__tls_functions = {
    ddp__tls_begin, ddp__tls_shake,  ddp__tls_send,     ddp__tls_recv, ddp__tls_events,
    ddp__tls_ready, ddp__tls_may_be, ddp__tls_may_join, ddp__tls_part, ddp__tls_why,
    ddp__tls_end,   ddp__tls_leave,  ddp__tls_destroy};

int ddp__tls_plug(ddp__tls_keys *k)
{
    k->base.table = &ddp__tls_functions;
    k->method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "dreamddp");
    return k->method && BIO_meth_set_write(k->method, ddp__tls_bio_write) &&
           BIO_meth_set_read(k->method, ddp__tls_bio_read) && BIO_meth_set_ctrl(k->method, ddp__tls_bio_ctrl);
}
#endif /* DDP_USE_OPENSSL */
