/* The built-in update rules as a device sees them: which one, and its factors. */
#ifndef DDP_NN_RULES_H
#define DDP_NN_RULES_H

#include "nn/optimizer.h"

typedef enum ddp__rule { DDP__RULE_USER, DDP__RULE_SGD, DDP__RULE_ADAM } ddp__rule;

/* Adam and AdamW of one update; all devices take the same floats. */
typedef struct ddp__adam_step {
    float beta1, gain1, beta2, gain2; /* gain = 1 - beta */
    float l2;                         /* of Adam: added to the gradient */
    float shrink;                     /* of AdamW: 1 - lr decay */
    float root, eps, step;            /* 1 / sqrt(1 - beta2^t), eps, -lr / (1 - beta1^t) */
} ddp__adam_step;

#ifdef __cplusplus
extern "C" {
#endif

DDP_LIB ddp__rule ddp__optimizer_rule(const ddp_optimizer *o);
/* Of an optimizer whose rule is DDP__RULE_ADAM. */
DDP_LIB void ddp__adam_factors(const ddp_optimizer *o, const ddp_update *u, ddp__adam_step *k);

#ifdef __cplusplus
}
#endif

#endif /* DDP_NN_RULES_H */
