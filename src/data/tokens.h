/* Token streams: files of tokens or of bytes, cut into windows and dealt to ranks. */
#ifndef DDP_DATA_TOKENS_H
#define DDP_DATA_TOKENS_H

#include "base/status.h"

/* A stream of tokens in memory; never changed after loading, so any thread may read it. */
typedef struct ddp_tokens ddp_tokens;

/* A part of a stream, cut into windows of seq tokens: window w predicts tokens
 * first + w seq + 1 .. first + (w + 1) seq from the ones before them. Tokens that do not fill a
 * window at the end are not used. */
typedef struct ddp_token_range {
    const ddp_tokens *tokens; /* borrowed */
    long first, count;        /* tokens */
    long seq;                 /* window length, at least 1 */
} ddp_token_range;

#ifdef __cplusplus
extern "C" {
#endif

/* ddp_tokens_open - reads a whole file: llm.c's .bin (its header says 16 or 32 bits), nanoGPT's
 * .bin (a name ending in .bin: 16-bit tokens), else any file as bytes, whose distinct values are
 * numbered in ascending order. A name ending in .gz is unpacked first.
 * ddp_tokens_from_bytes - the same for bytes in memory; name is for errors, and its ending
 * chooses the format as above. bytes is copied.
 * Both: NULL and *err on failure: unreadable, empty, shorter than two tokens, a header that
 * contradicts the size, a .bin of odd size. Freed by ddp_tokens_close. */
DDP_API ddp_tokens *ddp_tokens_open(const char *path, ddp_error *err);
DDP_API ddp_tokens *ddp_tokens_from_bytes(const char *name, const void *bytes, size_t n,
                                          ddp_error *err);
DDP_API void        ddp_tokens_close(ddp_tokens *t);

/* ddp_tokens_count - tokens in the stream.  ddp_tokens_at - token i, 0 <= i < count.
 * ddp_tokens_vocabulary - one more than the largest token.
 * ddp_tokens_byte - the byte behind a token, for writing samples; -1 if the file held token
 * numbers, or the token is none of the stream's. */
DDP_API long    ddp_tokens_count(const ddp_tokens *t);
DDP_API long    ddp_tokens_vocabulary(const ddp_tokens *t);
DDP_API int32_t ddp_tokens_at(const ddp_tokens *t, long i);
DDP_API int     ddp_tokens_byte(const ddp_tokens *t, long token);

/* ddp_tokens_check - DDP_FORMAT if a token is not below vocabulary; the sentence names the first
 * and its place. */
DDP_API ddp_status ddp_tokens_check(const ddp_tokens *t, long vocabulary, ddp_error *err);

/* ddp_tokens_split - the stream as two ranges: the last held_out (0 <= held_out < 1) of it in
 * *val, the rest in *train. held_out 0: val->count is 0 and val may be NULL.
 * Errors: a part that should not be empty is shorter than one window, seq + 1 tokens. */
DDP_API ddp_status ddp_tokens_split(const ddp_tokens *t, double held_out, long seq,
                                    ddp_token_range *train, ddp_token_range *val, ddp_error *err);

/* ddp_tokens_windows - windows of a range, 0 if it is too short.
 * ddp_tokens_window - window 0 <= w < windows into tokens [seq] and labels [seq]; labels are the
 * tokens one place later. */
DDP_API long ddp_tokens_windows(const ddp_token_range *r);
DDP_API void ddp_tokens_window(const ddp_token_range *r, long w, int32_t *tokens, int32_t *labels);

/* ddp_tokens_batch - what rank of world trains on in a step: tokens and labels, [batch x seq].
 *
 * Windows are dealt from a deck that is shuffled anew each epoch by the seed: the deck of epoch
 * e is a permutation of all windows; step s takes world x batch of them, rank 0 the first batch,
 * rank 1 the next. So in one epoch each window is used exactly once over all ranks, and ranks x
 * batch can be cut differently without changing what a step sees. An epoch may end inside a
 * step. The deck is never stored: a keyed bijection (Feistel network with cycle walking) finds
 * its card in O(1). Depends only on the arguments; no allocation; any thread. */
DDP_API void ddp_tokens_batch(const ddp_token_range *r, uint64_t seed, long step, int rank,
                              int world, long batch, int32_t *tokens, int32_t *labels);

/* ddp_tokens_epoch - epochs (a fraction) used up before step starts. */
DDP_API double ddp_tokens_epoch(const ddp_token_range *r, long step, int world, long batch);

#ifdef __cplusplus
}
#endif

#endif /* DDP_DATA_TOKENS_H */
