/* Keys of a broker and its nodes: their options, and the check that an address needs keys. */
#ifndef EXAMPLES_KEYS_H
#define EXAMPLES_KEYS_H

enum { CHANNEL_OPTIONS = 6 };

typedef struct channel_keys {
    ddp__tls_files file;
    int insecure; /* 1 if addresses beyond this machine are allowed without keys */
} channel_keys;

/* Writes CHANNEL_OPTIONS rows to table and returns their number. certificate: help of --tls-cert. */
static inline int channel_options(channel_keys *k, const char *certificate, cli_option *table)
{
    const cli_option shared[CHANNEL_OPTIONS] = {
        {"Security", CLI_GROUP, NULL, NULL, NULL},
        {"--tls-psk", CLI_TEXT, &k->file.psk, "FILE",
         "file with the key for TLS 1.3, the same on the broker and all nodes [none]"},
        {"--tls-ca", CLI_TEXT, &k->file.ca, "FILE",
         "or certificates (PEM): certificate of the authority that signed all others [none]"},
        {"--tls-cert", CLI_TEXT, &k->file.cert, "FILE", certificate},
        {"--tls-key", CLI_TEXT, &k->file.key, "FILE", "private key of --tls-cert [none]"},
        {"--insecure", CLI_FLAG, &k->insecure, "",
         "allow addresses beyond this machine without keys: neither encrypted nor authenticated"},
    };

    memcpy(table, shared, sizeof shared);
    return CHANNEL_OPTIONS;
}

/* Reads the variables if no option is given. *out: NULL if no file is named. Free it with
 * ddp__tls_free. */
static inline ddp_status channel_keys_open(channel_keys *k, ddp__tls **out, ddp_error *err)
{
    static const char *const variable[4] = {"DREAMDDP_TLS_PSK", "DREAMDDP_TLS_CA", "DREAMDDP_TLS_CERT",
                                            "DREAMDDP_TLS_KEY"};
    const char **file[4];

    file[0] = &k->file.psk;
    file[1] = &k->file.ca;
    file[2] = &k->file.cert;
    file[3] = &k->file.key;
    if (!k->file.psk && !k->file.ca && !k->file.cert && !k->file.key)
        for (int i = 0; i < 4; i++) {
            const char *given = getenv(variable[i]);
            if (given && *given) *file[i] = given;
        }
    return ddp__tls_open(&k->file, 0, out, err);
}

/* An address beyond this machine needs keys or --insecure. */
static inline ddp_status channel_resolve(const char *program, const char *spec, const channel_keys *k,
                                         const ddp__tls *tls, ddp__addr *out, ddp_error *err)
{
    const char *colon = strrchr(spec, ':');
    char text[DDP__ADDR_TEXT];
    int count;

    if (!colon || colon == spec || !colon[1])
        return refuse(err, DDP_ARG, "%s is no address: HOST:PORT, as 127.0.0.1:29600", spec);
    if (ddp__addr_parse(spec, out, 1, &count, err)) return err->code;
    if (tls || ddp__addr_is_loopback(out)) return DDP_OK;
    ddp__addr_text(out, text);
    if (!k->insecure)
        return refuse(
            err, DDP_ARG,
            "%s is beyond this machine, and the connections are neither encrypted nor authenticated: give "
            "the broker and all nodes the same --tls-psk FILE, or --insecure if the network can be trusted",
            text);
    fprintf(stderr, "%s: insecure: connections to %s are neither encrypted nor authenticated\n", program,
            text);
    return DDP_OK;
}

#endif /* EXAMPLES_KEYS_H */
