"""Hugging Face: a callback for transformers' Trainer and a plugin for Accelerate. The library averages instead of
DistributedDataParallel.

    trainer = Trainer(model=model, args=args, ...)
    trainer.add_callback(DreamDDPCallback(trainer))       # before trainer.train()

    accelerator = Accelerator()
    DreamDDPPlugin(accelerator)                           # before accelerator.prepare(...)

Both call dreamddp.init() if the program has not. Accelerate shards the data and gathers metrics as usual, so the ranks need a
process group: ddprun and torchrun set the environment variables for it. Tested with transformers 5 and accelerate 1 on CPUs.
"""
import functools

from accelerate.optimizer import AcceleratedOptimizer, patch_optimizer_step
from torch import nn
from transformers import TrainerCallback

import dreamddp


def _without_ddp(accelerator):
    """Makes accelerator.prepare_model return the model itself, as it does for models that are only evaluated."""
    accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)


def _wrap(model, optimizers):
    """Calls wrap for optimizers of Accelerate. They contain the program's optimizers and, with a loss scaler,
    replace their step method."""
    dreamddp.wrap(model, [o.optimizer for o in optimizers])
    for o in optimizers:
        if hasattr(o, "_optimizer_original_step_method"):
            o._optimizer_original_step_method = o.optimizer.step
            o._optimizer_patched_step_method = patch_optimizer_step(o, o.optimizer.step)


class DreamDDPPlugin:
    """Makes accelerator.prepare(model, optimizer, ...) wrap the model with all optimizers of the call."""

    def __init__(self, accelerator):
        if not dreamddp.is_initialized():
            dreamddp.init()
        _without_ddp(accelerator)
        prepare = accelerator.prepare

        @functools.wraps(prepare)
        def prepared(*objects, **more):
            result = prepare(*objects, **more)
            every = result if isinstance(result, tuple) else (result,)
            models = [x for x in every if isinstance(x, nn.Module)]
            optimizers = [x for x in every if isinstance(x, AcceleratedOptimizer)]
            if optimizers and len(models) == 1:
                _wrap(models[0], optimizers)
            elif optimizers:
                raise dreamddp.InvalidArgument("accelerator.prepare got %d models and %d optimizers: pass one model with "
                                               "its optimizers in each call" % (len(models), len(optimizers)))
            return result

        accelerator.prepare = prepared


class DreamDDPCallback(TrainerCallback):
    """A callback for a Trainer without FSDP or DeepSpeed. At the end of training all ranks have equal parameters."""

    def __init__(self, trainer):
        if not dreamddp.is_initialized():
            dreamddp.init()
        self.trainer = trainer
        _without_ddp(trainer.accelerator)

    def on_train_begin(self, args, state, control, **more):
        _wrap(self.trainer.model, [self.trainer.optimizer])

    def on_train_end(self, args, state, control, **more):
        dreamddp.sync_all()
