/* Text drawn from a trained language model, token by token. */
#ifndef EXAMPLES_SAMPLING_H
#define EXAMPLES_SAMPLING_H

enum { SAMPLING_WINDOW = 256 }; /* maximum number of tokens of context */

typedef struct sampling {
    long length;        /* tokens to draw, or 0 for no sample */
    long top_k;         /* draw from the N most likely tokens, or from all if 0 */
    double temperature; /* 0: always the most likely token */
    uint64_t seed;
    int32_t first;            /* token before the sample */
    const volatile int *stop; /* read before each token, or NULL. A value other than 0 ends the sample */
} sampling;

static ddp_rng sampling_rng(const sampling *s) { return ddp_rng_seed(s->seed, 0x73616d70); }

/* Returns the k-th largest of n values, the lowest that may be drawn. best: scratch for k values. */
static float sampling_threshold(const float *x, long n, long k, float *best)
{
    long i, j, held = 0;

    for (i = 0; i < n; i++) {
        if (held == k && !(x[i] > best[k - 1])) continue;
        if (held < k) held++;
        for (j = held - 1; j > 0 && best[j - 1] < x[i]; j--) best[j] = best[j - 1];
        best[j] = x[i];
    }
    return best[k - 1];
}

/* Draws a token with probability softmax(x / temperature) among the top_k largest and their ties. */
static int32_t sampling_draw(const float *x, long n, const sampling *s, ddp_rng *r, float *best)
{
    const long k = s->temperature > 0 ? (s->top_k > 0 && s->top_k < n ? s->top_k : n) : 1;
    const float low = k < n ? sampling_threshold(x, n, k, best) : -FLT_MAX;
    double top = -FLT_MAX, sum = 0, at;
    long i, last = 0;

    for (i = 0; i < n; i++)
        if ((double)x[i] > top) {
            top = (double)x[i];
            last = i;
        }
    if (k == 1) return (int32_t)last;
    for (i = 0; i < n; i++)
        if (x[i] >= low) sum += exp(((double)x[i] - top) / s->temperature);
    at = ddp_rng_uniform(r) * sum;
    for (i = 0; i < n && at >= 0; i++) {
        if (!(x[i] >= low)) continue;
        at -= exp(((double)x[i] - top) / s->temperature);
        last = i;
    }
    return (int32_t)last;
}

/* Fills out [s->length] with tokens from the model of trained. g is the same model for one sequence of at
 * most as many tokens, with its logits, not built yet. Each token is one pass over the whole window: keys and
 * values are not cached. Returns 0 or a ddp_status. */
static int sampling_run(ddp_graph *trained, ddp_graph *g, ddp_node *logits, const sampling *s, int32_t *out)
{
    ddp_rng r = sampling_rng(s);
    int32_t *tokens, *labels;
    ddp_node_info info;
    float *best;
    long window, vocabulary, i, t;
    int l, bad = ddp_graph_build(g);

    if (bad) return bad;
    for (l = 0; l < ddp_layer_count(g); l++) { /* a shorter position table is the beginning of the longer
                                                * one */
        size_t count;
        float *to = ddp_layer_params(g, l, &count);
        if (count) bad = ddp_graph_read(trained, to, ddp_layer_params(trained, l, NULL), count);
        if (bad) return bad;
    }
    ddp_node_describe(g, ddp_node_index(logits), &info);
    window = info.out.dim[1];
    vocabulary = info.out.dim[2];
    best = (float *)malloc((size_t)vocabulary * sizeof *best);
    if (!best) return DDP_MEMORY;
    tokens = (int32_t *)ddp_data(g, "tokens");
    labels = (int32_t *)ddp_data(g, "labels");
    for (i = 0; i < window; i++) {
        tokens[i] = 0;
        labels[i] = -1;
    }
    tokens[0] = s->first;
    for (i = 0, t = 0; !bad && i < s->length; i++) {
        bad = s->stop && *s->stop ? (int)DDP_ABORTED : ddp_evaluate(g);
        if (bad) break;
        out[i] = sampling_draw(ddp_output(g, logits) + t * vocabulary, vocabulary, s, &r, best);
        if (t + 1 < window)
            t++;
        else
            memmove(tokens, tokens + 1, (size_t)(window - 1) * sizeof *tokens);
        tokens[t] = out[i];
    }
    free(best);
    return bad;
}

#endif /* EXAMPLES_SAMPLING_H */
