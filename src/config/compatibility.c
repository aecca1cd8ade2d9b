/* Compatibility of settings: one table of settings and strategies. The errors, their test and the page
 * docs/reference/compatibility.md are derived from it. A combination without a row is allowed. */
#include "base/backend.h"
#include "config/settings.h"

/* A setting: its name, its value (%ld, if the name has one), and the condition under which it is on. */
#define DDP__FEATURES(X)                                                                            \
    X(CLIP, "clip_norm", 0, c->clip_norm > 0)                                                       \
    X(BF16, "wire bf16", 0, c->wire == DDP_WIRE_BF16)                                               \
    X(INT8, "wire int8", 0, c->wire == DDP_WIRE_INT8)                                               \
    X(INT4, "wire int4 or e3m0", 0, c->wire == DDP_WIRE_INT4 || c->wire == DDP_WIRE_E3M0)           \
    X(TOPK, "wire topk", 0, c->wire == DDP_WIRE_TOPK)                                               \
    X(FIRST, "your own update, or average_first", 0, c->average.first)                              \
    X(PARTS, "split_params %ld", c->average.split_params, c->average.split_params > 0)              \
    X(GROUPS, "layers of a group", 0, groups)                                                       \
    X(SITE, "site %ld", c->site, c->site > 0)                                                       \
    X(ELASTIC, "min_world %ld", c->elastic.min_world, c->elastic.min_world > 0)                     \
    X(ROOM, "max_world %ld", c->elastic.max_world, c->elastic.max_world > c->world && c->world > 0) \
    X(JOIN, "join", 0, c->elastic.join)                                                             \
    X(SECOND, "net2 or addr2", 0, c->network.net2 || c->network.addr2)                              \
    X(THREADS, "transport threads", 0, c->transport == DDP_THREADS)                                 \
    X(MPI, "transport mpi", 0, c->transport == DDP_MPI)                                             \
    X(SOCKETS, "transport sockets", 0, c->transport == DDP_SOCKETS)                                 \
    X(TLS, "tls_psk or tls_ca, tls_cert, tls_key", 0,                                               \
      c->security.psk || c->security.ca || c->security.cert || c->security.key)                     \
    X(RING, "algorithm ring", 0, c->algorithm == DDP_RING)                                          \
    X(DETERMINISTIC, "deterministic", 0, c->deterministic)                                          \
    X(DEVICE, "a backend", 0, c->backend != NULL)                                                   \
    X(NCCL, "nccl %ld", c->device.nccl, c->device.nccl > 0)                                         \
    X(NO_NCCL1, "nccl %ld", c->device.nccl, c->device.nccl != 1)                                    \
    X(NO_NETWORK, "no backend with a network of its own", 0, !c->backend || !c->backend->join)      \
    X(STREAM, "cuda_stream", 0, c->device.cuda_stream != NULL)                                      \
    X(NO_DEVICE, "no backend", 0, !c->backend)                                                      \
    X(STEADY, "neither min_world nor join", 0, c->elastic.min_world == 0 && !c->elastic.join)       \
    X(SERVERS, "servers %ld", c->server.count, c->server.count != 0)                                \
    X(NO_SERVERS, "no servers", 0, c->server.count == 0)                                            \
    X(COLOCATED, "servers colocated", 0, c->server.count < 0)                                       \
    X(ONE_LINK, "one link", 0, c->world > 1 && !c->network.net2 && !c->network.addr2 && c->device.nccl != 2)

typedef enum ddp__feature {
#define DDP__FEATURE_ID(id, name, value, on) DDP__ON_##id,
    DDP__FEATURES(DDP__FEATURE_ID)
#undef DDP__FEATURE_ID
        DDP__FEATURE_COUNT
} ddp__feature;

#define DDP__BIT(id) (1u << DDP__ON_##id)
#define DDP__NO(a, b, code, why)                \
    {                                           \
        DDP__BIT(a) | DDP__BIT(b), 0, code, why \
    }
#define DDP__NO_SUCH(a, b, c, code, why)                  \
    {                                                     \
        DDP__BIT(a), DDP__BIT(b) | DDP__BIT(c), code, why \
    }
static const ddp__goes_row ddp__goes_rows[] = {
    DDP__NO_SUCH(
        PARTS, INT8, INT4, DDP_UNSUPPORTED,
        "the quantisation residual is stored for whole layers: choose f32 or bf16, or leave split_params 0"),
    {DDP__BIT(SITE) | DDP__BIT(TOPK), DDP__BIT(ELASTIC) | DDP__BIT(JOIN), DDP_ARG,
     "messages gathered between sites need all workers: choose another wire, or omit site"},
    {DDP__BIT(SITE) | DDP__BIT(DEVICE) | DDP__BIT(TOPK), 0, DDP_UNSUPPORTED,
     "messages gathered between sites are packed in host memory: choose another wire, or omit site"},
    DDP__NO(SITE, GROUPS, DDP_UNSUPPORTED,
            "hierarchical averages include all ranks: use either sites or groups"),
    DDP__NO(CLIP, GROUPS, DDP_UNSUPPORTED,
            "no rank knows the norm over the layers of all groups: set clip_norm to 0"),
    DDP__NO(JOIN, GROUPS, DDP_UNSUPPORTED,
            "a process group cannot admit a joining worker: use layers without groups"),
    DDP__NO(ELASTIC, GROUPS, DDP_UNSUPPORTED,
            "a group cannot lose a worker: set min_world to 0, or use layers without groups"),
    DDP__NO_SUCH(SECOND, ELASTIC, JOIN, DDP_ARG, "an elastic world has one link: omit net2 and addr2"),
    {DDP__BIT(ROOM), DDP__BIT(THREADS) | DDP__BIT(MPI) | DDP__BIT(SOCKETS), DDP_ARG,
     "joining workers need the tcp transport"},
    {DDP__BIT(JOIN), DDP__BIT(THREADS) | DDP__BIT(MPI) | DDP__BIT(SOCKETS), DDP_ARG,
     "joining workers need the tcp transport"},
    DDP__NO(ROOM, STEADY, DDP_ARG, "only an elastic world admits joining workers: set min_world"),
    DDP__NO(ELASTIC, COLOCATED, DDP_UNSUPPORTED,
            "a lost worker is also a lost server: set servers to 1 or more, or min_world to 0"),
    DDP__NO(MPI, ELASTIC, DDP_ARG,
            "MPI ends every rank when one is lost: use the tcp transport, or set min_world to 0"),
    DDP__NO_SUCH(SECOND, MPI, SOCKETS, DDP_ARG, "a second link needs the tcp or threads transport"),
    DDP__NO(SOCKETS, TLS, DDP_ARG,
            "the library encrypts only its own connections: use the tcp transport, or omit the tls options"),
    DDP__NO(MPI, TLS, DDP_ARG,
            "the library cannot encrypt MPI's connections: use --transport tcp, or no --tls options"),
    DDP__NO(RING, DETERMINISTIC, DDP_ARG,
            "a ring adds in a different order: choose DDP_DIRECT, or set deterministic to 0"),
    DDP__NO_SUCH(NCCL, ELASTIC, JOIN, DDP_UNSUPPORTED,
                 "elastic worlds average through the transport: set nccl to 0"),
    DDP__NO(DEVICE, SECOND, DDP_UNSUPPORTED,
            "the second link of a backend is its device network: set nccl to 2 instead, or train on the CPU"),
    {DDP__BIT(DEVICE) | DDP__BIT(SITE) | DDP__BIT(NO_NCCL1), 0, DDP_UNSUPPORTED,
     "hierarchical averages on a backend use NCCL inside each site: set nccl to 1, or omit site"},
    DDP__NO_SUCH(NCCL, INT8, INT4, DDP_UNSUPPORTED,
                 "NCCL averages float32 only: set nccl to 0, or choose f32 or bf16"),
    DDP__NO(NCCL, SERVERS, DDP_UNSUPPORTED, "messages to servers use the transport: set nccl to 0"),
    DDP__NO(NCCL, NO_NETWORK, DDP_ARG, "set nccl to 0, or backend to ddp_cuda(...)"),
    DDP__NO(STREAM, NO_DEVICE, DDP_ARG, "set backend to ddp_cuda(...), or cuda_stream to NULL"),
    {0, 0, DDP_OK, NULL}};

/* Traits that a strategy needs for a setting. */
static const ddp__goes_trait ddp__goes_traits[] = {
    {DDP_WITH_CLIP, DDP__BIT(CLIP), 0, "its updates do not wait for all gradients: set clip_norm to 0"},
    {DDP_WITH_FIRST, DDP__BIT(FIRST), 0,
     "its averages are not complete before it updates: register an optimizer (ddp_set_optimizer), and set "
     "average_first to 0"},
    {DDP_WITH_BF16, DDP__BIT(BF16), 0, "its messages are float32: use wire f32"},
    {DDP_WITH_INT8, DDP__BIT(INT8), 0, "it does not quantise its messages: choose another wire"},
    {DDP_WITH_INT4, DDP__BIT(INT4), 0,
     "four bits per value are enough for parameter deltas only: choose int8, bf16 or f32"},
    {DDP_WITH_TOPK, DDP__BIT(TOPK), 0,
     "top-k is for parameter deltas only, whose omitted values are sent later: choose int8, bf16 or f32"},
    {DDP_WITH_PARTS, DDP__BIT(PARTS), 0, "its plan has whole layers only: set split_params to 0"},
    {DDP_WITH_GROUPS, DDP__BIT(GROUPS), 0, "it sends to all ranks: use layers without groups"},
    {DDP_WITH_SITES, DDP__BIT(SITE), 0, "it does not support hierarchical averages: omit site"},
    {DDP_WITH_ELASTIC, DDP__BIT(ELASTIC), 0, "it cannot lose a worker: set min_world to 0"},
    {DDP_WITH_ELASTIC, DDP__BIT(JOIN), 0, "a joining worker cannot receive its state: set join to 0"},
    {DDP_WITH_DEVICE, DDP__BIT(DEVICE), 0, "it works in host memory only: train on the CPU"},
    {DDP_NEEDS_SERVERS, DDP__BIT(SERVERS), 0, "it does not use servers: set servers to 0"},
    {DDP_NEEDS_SERVERS, DDP__BIT(NO_SERVERS), 1,
     "it needs servers: set servers (--servers N, or --servers colocated)"},
    {DDP_NEEDS_SERVERS, DDP__BIT(JOIN), 1, "servers do not support joining workers: set join to 0"},
    {DDP_NEEDS_SERVERS, DDP__BIT(ROOM), 1, "servers do not support joining workers: set max_world to 0"},
    {DDP_NEEDS_TWO_LINKS, DDP__BIT(ONE_LINK), 1, "it needs a second link: set net2 or addr2"},
    {0, 0, 0, NULL}};
#undef DDP__NO
#undef DDP__NO_SUCH
#undef DDP__BIT

const char *ddp__feature_name(int i)
{
#define DDP__FEATURE_NAME(id, name, value, on) name,
    static const char *const text[] = {DDP__FEATURES(DDP__FEATURE_NAME)};
#undef DDP__FEATURE_NAME

    return i >= 0 && i < (int)DDP__FEATURE_COUNT ? text[i] : NULL;
}

/* The text of a setting that is on, with its value. */
static const char *ddp__feature_text(const ddp_config *c, int groups, int i, char *buf, size_t room)
{
    long number = 0;

    (void)groups;
#define DDP__FEATURE_VALUE(id, name, value, on) \
    if (i == (int)DDP__ON_##id) number = (long)(value);
    DDP__FEATURES(DDP__FEATURE_VALUE)
#undef DDP__FEATURE_VALUE
    snprintf(buf, room, "%s", ddp__feature_name(i));
    if (strstr(buf, "%ld")) snprintf(strstr(buf, "%ld"), 24, "%ld", number);
    return buf;
}

unsigned ddp__features_on(const ddp_config *c, int groups)
{
    unsigned on_now = 0;

#define DDP__FEATURE_ON(id, name, value, on) \
    if (on) on_now |= 1u << DDP__ON_##id;
    DDP__FEATURES(DDP__FEATURE_ON)
#undef DDP__FEATURE_ON
    return on_now;
}

const ddp__goes_row *ddp__goes_refuses(unsigned on)
{
    const ddp__goes_row *row = ddp__goes_rows;

    while (row->why && ((on & row->all) != row->all || (row->any && !(on & row->any)))) row++;
    return row->why ? row : NULL;
}

const ddp__goes_trait *ddp__goes_lacks(unsigned on, unsigned traits)
{
    const ddp__goes_trait *t = ddp__goes_traits;

    while (t->why && (!(on & t->on) || !!(traits & t->trait) != t->with)) t++;
    return t->why ? t : NULL;
}

ddp_status ddp__goes_check(const ddp_config *c, const ddp_strategy_ops *ops, int groups, ddp_error *err)
{
    const unsigned on = ddp__features_on(c, groups),
                   wire = DDP_WITH_BF16 | DDP_WITH_INT8 | DDP_WITH_INT4 | DDP_WITH_TOPK;
    const ddp__goes_row *row = ddp__goes_refuses(on);
    const ddp__goes_trait *t = ops ? ddp__goes_lacks(on, ops->traits) : NULL;
    const unsigned any = row ? on & row->any : 0, told = row ? row->all | (any & (~any + 1)) : t ? t->on : 0;
    const char *why;
    char text[256] = "", one[64];
    int n = 0;

    for (int i = 0; i < (int)DDP__FEATURE_COUNT; i++)
        if (told >> i & 1)
            n += snprintf(text + n, sizeof text - (size_t)n, "%s%s", n ? " with " : "",
                          ddp__feature_text(c, groups, i, one, sizeof one));
    if (row) return ddp__fail(err, row->code, "%s: %s", text, row->why);
    if (!t) return DDP_OK;
    why = ops->choose && (t->trait & wire) ? "it chooses the wire format itself: omit wire" : t->why;
    return ddp__fail(err, DDP_UNSUPPORTED, "strategy %s with %s: %s", ops->name, text, why);
}
