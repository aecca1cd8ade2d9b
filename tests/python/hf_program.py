"""Programs that use Hugging Face's libraries, run by tests/python/test_huggingface.py. argv[1] is trainer,
accelerate, lora or ddp. argv[2] is alone, or the file with the parameters of that run, with which each rank
compares its own."""
import os
import sys
import tempfile
import warnings

import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import dreamddp

KIND, ALONE = sys.argv[1], sys.argv[2] == "alone"
RANKS = 2


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, i):
        x = torch.randint(64, (16,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": x, "labels": x}


def gpt():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16, resid_pdrop=0,
                                      embd_pdrop=0, attn_pdrop=0))


def train(model, callback):
    rows = 4 * (RANKS if ALONE else 1)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=20, per_device_train_batch_size=rows,
                             gradient_accumulation_steps=2, learning_rate=1e-2, lr_scheduler_type="constant", optim="sgd",
                             report_to=[], logging_steps=10, save_strategy="no", use_cpu=True, seed=3, disable_tqdm=True)
    trainer = Trainer(model=model, args=args, train_dataset=Data())
    if callback:
        from dreamddp.huggingface import DreamDDPCallback
        trainer.add_callback(DreamDDPCallback(trainer))
    trainer.train()
    return trainer


def accelerate():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    if not ALONE:
        from dreamddp.huggingface import DreamDDPPlugin
        DreamDDPPlugin(accelerator)
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Data(), 4 * (RANKS if ALONE else 1))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return model


def lora():
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(gpt(), LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
    train(model, not ALONE)
    return model


def both_average():
    """A Trainer without the callback wraps the model in DistributedDataParallel, and the program wraps it too."""
    dreamddp.init()
    model = gpt()
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=4, optim="sgd", report_to=[],
                             save_strategy="no", use_cpu=True, disable_tqdm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = Trainer(model=model, args=args, train_dataset=Data(), optimizers=(optimizer, None))
    dreamddp.wrap(model, optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer.train()
        except dreamddp.UsageError as e:  # Accelerate has moved the parameters
            print(e, flush=True)
    said = [str(w.message) for w in caught if "both average its gradients" in str(w.message)]
    print("warnings %d" % len(said), flush=True)


def main():
    if KIND == "ddp":
        both_average()
        return
    model = {"trainer": lambda: train(gpt(), not ALONE).model, "accelerate": accelerate, "lora": lora}[KIND]()
    if not ALONE:
        dreamddp.sync_all()
    values = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    if ALONE:
        torch.save(values, sys.argv[3])
        return
    far = (values - torch.load(sys.argv[2])).abs().max().item()
    same = torch.equal(values, dreamddp.broadcast(values.clone()))
    print("equal %d far %.3g steps %d" % (same, far, dreamddp.step()), flush=True)


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    main()
