/* The options by which workers connect, shared by netcheck and bench_allreduce. The trainers have the same
 * options (train/options.h), and more. */
#ifndef EXAMPLES_CONNECT_H
#define EXAMPLES_CONNECT_H

typedef struct connection {
    const char *transport, *addr;
    long workers, rank; /* < 0 if not given */
} connection;

enum { CONNECT_OPTIONS = 15 };

/* Writes CONNECT_OPTIONS rows to table and returns their number. c->workers is an option of the program. */
static int connect_options(connection *c, ddp_config *cfg, cli_option *table)
{
    const cli_option shared[CONNECT_OPTIONS] = {
        {"Network", CLI_GROUP, NULL, NULL, NULL},
        {"--transport", CLI_TEXT, &c->transport, "NAME",
         "tcp (processes), threads, or mpi under mpirun [tcp]"},
        {"--rank", CLI_COUNT, &c->rank, "R", "rank of this process; start the other ranks on their machines"},
        {"--addr", CLI_TEXT, &c->addr, "HOST:PORT",
         "address of rank 0, or file://PATH; needs --rank [127.0.0.1:29500]"},
        {"--net", CLI_TEXT, &cfg->net, "RATE,DELAY",
         "emulated link of each worker, such as 100mbit,20ms, or a topology FILE.json [unshaped]"},
        {"--net-script", CLI_SETTING, cfg, "FILE", NULL},
        {"--connect-timeout", CLI_SETTING, cfg, "S", NULL},
        {"--join-timeout", CLI_SETTING, cfg, "S", NULL},
        {"--peer-timeout", CLI_SETTING, cfg, "S", NULL},
        {"--op-timeout", CLI_SETTING, cfg, "S", NULL},
        {"--insecure", CLI_SETTING, cfg, "", NULL},
        {"--tls-psk", CLI_SETTING, cfg, "FILE", NULL},
        {"--tls-ca", CLI_SETTING, cfg, "FILE", NULL},
        {"--tls-cert", CLI_SETTING, cfg, "FILE", NULL},
        {"--tls-key", CLI_SETTING, cfg, "FILE", NULL},
    };

    memset(c, 0, sizeof *c);
    c->workers = c->rank = -1;
    memcpy(table, shared, sizeof shared);
    return CONNECT_OPTIONS;
}

/* The value of an option, else of its variable, else a default. */
static const char *connect_or(const char *given, const char *variable, const char *otherwise)
{
    const char *v = given ? given : getenv(variable);

    return v && *v ? v : otherwise;
}

/* Fills cfg from the parsed options. Returns 0, or 2 after a message on stderr. */
static int connect_configure(const char *program, const connection *c, ddp_config *cfg)
{
    const char *transport = connect_or(c->transport, "DREAMDDP_TRANSPORT", "tcp");

    cfg->transport = ddp_transport_named(transport);
    if (cfg->transport == DDP_TRANSPORT_DEFAULT || cfg->transport == DDP_SOCKETS) {
        fprintf(stderr, "%s: unknown transport %s; choose tcp, threads or mpi\n", program, transport);
        return 2;
    }
    if (c->workers > 256 || (c->workers >= 0 && c->workers < 2)) {
        fprintf(stderr, "%s: --workers %ld: choose a number from 2 to 256\n", program, c->workers);
        return 2;
    }
    if (c->rank >= 0 && c->workers < 0) {
        fprintf(stderr, "%s: --rank %ld needs --workers N, from 2 to 256\n", program, c->rank);
        return 2;
    }
    if (c->rank >= c->workers && c->rank >= 0) {
        fprintf(stderr, "%s: --rank %ld is outside --workers %ld; ranks count from 0\n", program, c->rank,
                c->workers);
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
    cfg->world = c->workers < 0 ? 0 : (int)c->workers;
    if (c->rank >= 0) {
        cfg->rank = (int)c->rank;
        cfg->addr = connect_or(c->addr, "DREAMDDP_ADDR", "127.0.0.1:29500");
    }
    cfg->cancel = &cli_interrupted;
    return 0;
}

#endif /* EXAMPLES_CONNECT_H */
