/* How a program's workers meet: the options that netcheck and bench_allreduce share. They are named
 * and mean what they do in the trainers (train/options.h), which have more. */
#ifndef EXAMPLES_CONNECT_H
#define EXAMPLES_CONNECT_H

typedef struct connection {
    const char *transport, *addr;
    long workers, rank; /* rank < 0 = not given */
} connection;

enum { CONNECT_OPTIONS = 14 };

/* Writes them to table, of at least CONNECT_OPTIONS; what they say goes to c and cfg. Returns how
 * many. c->workers is the program's own option. */
static int connect_options(connection *c, ddp_config *cfg, cli_option *table)
{
    const cli_option shared[CONNECT_OPTIONS] = {
        {"--transport", CLI_TEXT, &c->transport, "NAME",
         "tcp (processes), threads, or mpi under mpirun [tcp]"},
        {"--net", CLI_TEXT, &cfg->net, "RATE,DELAY",
         "shape each worker's links, e.g. 100mbit,20ms, or a topology FILE.json [unshaped]"},
        {"--net-script", CLI_TEXT, &cfg->network.net_script, "FILE",
         "stalls, drops, kills and rates at given times (docs/links.md)"},
        {"--rank", CLI_COUNT, &c->rank, "R", "be one rank; the others are started elsewhere"},
        {"--addr", CLI_TEXT, &c->addr, "HOST:PORT",
         "where rank 0 listens, or file://PATH; with --rank [127.0.0.1:29500]"},
        {"--insecure", CLI_FLAG, &cfg->security.insecure, "",
         "allow addresses beyond this machine, without encryption"},
        {"--connect-timeout", CLI_REAL, &cfg->timeout.connect_s, "S", "seconds for rank 0 to answer [30]"},
        {"--join-timeout", CLI_REAL, &cfg->timeout.join_s, "S",
         "seconds for all workers to come [as --connect-timeout]"},
        {"--peer-timeout", CLI_REAL, &cfg->timeout.peer_s, "S",
         "seconds of silence after which a worker is lost [30; with --min-world 10]"},
        {"--op-timeout", CLI_REAL, &cfg->timeout.op_s, "S",
         "seconds for an operation, from the first worker's on [1800]"},
        {"--tls-psk", CLI_TEXT, &cfg->security.psk, "FILE",
         "encrypt: TLS 1.3 with the key in FILE, the same for all workers"},
        {"--tls-ca", CLI_TEXT, &cfg->security.ca, "FILE",
         "or with certificates: the authority that signed them all (PEM),"},
        {"--tls-cert", CLI_TEXT, &cfg->security.cert, "FILE", "this worker's, with the name rank-R,"},
        {"--tls-key", CLI_TEXT, &cfg->security.key, "FILE", "and its private key"},
    };

    memset(c, 0, sizeof *c);
    c->rank = -1;
    memcpy(table, shared, sizeof shared);
    return CONNECT_OPTIONS;
}

/* The environment's word where an option was not given. */
static const char *connect_or(const char *given, const char *variable, const char *otherwise)
{
    const char *v = given ? given : getenv(variable);

    return v && *v ? v : otherwise;
}

/* From the parsed options to cfg. Returns 0, or 2 after a sentence on stderr. */
static int connect_configure(const char *program, const connection *c, ddp_config *cfg)
{
    const char *transport = connect_or(c->transport, "DREAMDDP_TRANSPORT", "tcp");

    cfg->transport = ddp_transport_named(transport);
    if (cfg->transport == DDP_TRANSPORT_DEFAULT || cfg->transport == DDP_SOCKETS) {
        fprintf(stderr, "%s: unknown transport %s; choose tcp, threads or mpi\n", program, transport);
        return 2;
    }
    if (c->workers > 256 || (c->rank >= 0 && (c->workers < 2 || c->rank >= c->workers))) {
        fprintf(stderr,
                "%s: %ld workers and --rank %ld are not possible; 2 to 256 workers, ranks "
                "from 0\n",
                program, c->workers, c->rank);
        return 2;
    }
    if (c->addr && c->rank < 0) {
        fprintf(stderr, "%s: --addr %s needs --rank R; each machine starts its own rank\n", program, c->addr);
        return 2;
    }
    if (c->rank >= 0 && cfg->transport != DDP_TCP) {
        fprintf(stderr,
                "%s: --rank %ld needs --transport tcp; threads live in one process, and "
                "MPI's launcher gives ranks\n",
                program, c->rank);
        return 2;
    }
    if (!(cfg->timeout.connect_s >= 0 && cfg->timeout.join_s >= 0 && cfg->timeout.peer_s >= 0 &&
          cfg->timeout.op_s >= 0)) {
        fprintf(stderr, "%s: a time-out below 0 s is not possible; 0 is the default\n", program);
        return 2;
    }
    cfg->world = (int)c->workers;
    if (c->rank >= 0) {
        cfg->rank = (int)c->rank;
        cfg->addr = connect_or(c->addr, "DREAMDDP_ADDR", "127.0.0.1:29500");
    }
    cfg->cancel = &cli_interrupted;
    return 0;
}

#endif /* EXAMPLES_CONNECT_H */
