#!/usr/bin/env python3
"""build/train_gpt: both models, operator threads, the validation loss, and the sample it prints.

Needs build/train_gpt (`make all`)."""
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import case as plain_case, expect, run_cases, unused_address  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAIN = os.path.join(ROOT, os.environ.get("BUILD", "build"), "train_gpt")
SIZES = "--layers 2 --heads 4 --dim 32 --seq 20 --batch 3 --steps 12 --quiet".split()
LLAMA = ["--model", "llama2", "--kv-heads", "2"]


def case(function):
    """Registers a case that gets the path of a text, in its own folder."""
    def with_text(folder):
        data = os.path.join(folder, "text")
        with open(data, "w") as f:
            f.write("".join("abcde"[i * i % 5] + ("\n" if i % 31 == 0 else "") for i in range(9000)))
        function(data)
    return plain_case(function.__name__.replace("_", " "))(with_text)


def run(*args, code=0):
    """Runs the trainer. Returns its output before the last line, and the JSON object on that line."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DREAMDDP_", "OMPI_", "SLURM_"))}
    p = subprocess.run([TRAIN, *SIZES, *map(str, args)], env=env, capture_output=True, text=True,
                       timeout=300)
    expect(p.returncode == code, "exit %d: %s" % (p.returncode, p.stderr[-300:]))
    if code:
        return p.stderr
    text, _, last = p.stdout.rstrip("\n").rpartition("\n")
    return text, json.loads(last)


@case
def both_models_learn_and_threads_do_not_change_the_result(data):
    for model in ([], LLAMA, LLAMA + ["--tied", "--hidden", "40"]):
        results = [run("--data", data, *model, "--threads", t)[1] for t in (1, 2, 3)]
        expect(results[0]["final_loss"] < results[0]["first_loss"] - 0.3, "%s does not learn" % model)
        hashes = {r["param_hash"] for r in results}
        expect(len(hashes) == 1, "%s: %s with 1, 2, 3 threads" % (model, hashes))


@case
def llama_on_two_workers_matches_one_with_twice_the_batch(data):
    llama = ["--data", data, *LLAMA, "--strategy", "ssgd", "--deterministic", "--optimizer", "sgd",
             "--lr", 0.1]
    one = run(*llama, "--batch", 6)[1]
    two = run(*llama, "--workers", 2, "--transport", "threads")[1]
    expect(abs(one["final_loss"] - two["final_loss"]) < 1e-4,
           "loss %g on one worker, %g on two" % (one["final_loss"], two["final_loss"]))


@case
def samples_use_the_vocabulary_and_are_reproducible(data):
    for model in ([], LLAMA):
        args = ["--data", data, *model, "--sample", 90]
        first, result = run(*args)
        expect(len(first) == 90 and set(first) <= set("abcde\n"), "sample %r" % first)
        again, same = run(*args, "--threads", 2)
        expect(again == first, "%r, then %r" % (first, again))
        expect(same["param_hash"] == run("--data", data, *model)[1]["param_hash"],
               "sampling changed the parameters")
        other = run("--data", data, *model, "--sample", 90, "--temperature", 2, "--top-k", 0)[0]
        expect(other != first, "temperature 2 gives the sample of 0.8")
        likeliest = [run(*args, "--temperature", 0)[0], run(*args, "--top-k", 1)[0]]
        expect(likeliest[0] == likeliest[1] and len(set(likeliest[0])) < 6, str(likeliest))


@case
def tokens_without_text_are_printed_as_numbers(data):
    path = os.path.join(os.path.dirname(data), "tokens.bin")
    with open(path, "wb") as f:
        f.write(b"".join((7 * i % 50).to_bytes(2, "little") for i in range(4000)))
    words = run("--data", path, "--sample", 30)[0].split()
    expect(len(words) == 30 and all(0 <= int(w) < 50 for w in words), str(words))


@case
def only_one_worker_prints_the_sample(data):
    text = run("--data", data, "--workers", 2, "--strategy", "localsgd", "--sample", 40)[0]
    expect(len(text) == 40, repr(text))


@case
def val_batches_0_averages_all_held_out_data(data):
    args = ["--data", data, "--held-out", 0.5]
    part, more, most = (run(*args, "--val-batches", n)[1]["val_loss"] for n in (1, 20, 0))
    expect(part != more and more != most, "val_loss %g, %g, %g" % (part, more, most))
    expect(abs(more - most) < 0.2, "val_loss %g of 20 batches, %g of all" % (more, most))


@case
def run_that_ends_while_profiling_reports_figures(data):
    for steps in (1, 5, 6, 7):
        for more in ([], ["--workers", 2, "--transport", "threads"], ["--eval-every", 3]):
            result = run("--data", data, "--steps", steps, *more)[1]
            expect(result["tokens_per_s"] > 0 and result["step_ms"] > 0, "%d steps: %s" % (steps, result))


def two_ranks(data, *own):
    """Exit codes and stderr of two ranks that were started separately, each with its own options."""
    addr = unused_address()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DREAMDDP_", "OMPI_", "SLURM_"))}
    ranks = [subprocess.Popen([TRAIN, *SIZES, "--quiet", "--steps", "4", "--data", data, "--workers", "2", "--rank", str(r), "--addr",
                               addr, *map(str, args)], env=env, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) for r, args in enumerate(own)]
    try:
        said = [p.communicate(timeout=180)[1] for p in ranks]
    finally:
        for p in ranks:
            p.kill()
            p.wait()
    return [p.returncode for p in ranks], said


@case
def different_data_and_batch_sizes_give_one_warning(data):
    longer = data + ".longer"
    with open(data) as f, open(longer, "w") as out:
        text = f.read()
        out.write(text + text[:1000])
    code, said = two_ranks(data, [], ["--data", longer, "--batch", 4])
    expect(code == [0, 0], "exit %s: %s" % (code, said))
    lines = [s for s in "".join(said).splitlines() if "warning" in s]
    expect(len(lines) == 1, "stderr: %s" % said)
    expect(re.search(r"warning: rank 0 has batch size 3 \(rank 1: 4\), length of data \d+ \(rank 1: \d+\): the run continues",
                     lines[0]), "stderr: %s" % said)


@case
def ranks_with_different_settings_fail(data):
    for words, args in (("warm-up steps 2, rank 0 has warm-up steps 0", ["--warmup", 2]),
                        (r"schedule \(0: constant\) 1, rank 0 has schedule \(0: constant\) 0", ["--schedule", "cosine"]),
                        ("dropout 0.1, rank 0 has 0", ["--dropout", 0.1]),
                        ("seed 3, rank 0 has ", ["--seed", 3]),
                        ("weight decay 0.5, rank 0 has 0.01", ["--weight-decay", 0.5])):
        code, said = two_ranks(data, [], args)
        expect(all(code), "%s: exit %s" % (args, code))
        expect(any(re.search("rank 1 has " + words, s) for s in said), "%s: stderr: %s" % (args, said))


@case
def ranks_with_different_plan_files_fail(data):
    plans = [os.path.join(os.path.dirname(data), name) for name in ("one.json", "other.json")]
    for number, plan in enumerate(plans):
        with open(plan, "w") as f:
            f.write('{"plan": %d}\n' % number)
    for first, second in ((["--plan", plans[0]], ["--plan", plans[1]]), (["--plan", plans[0]], [])):
        code, said = two_ranks(data, first, second)
        expect(all(code), "%s: exit %s" % (second, code))
        expect(any(re.search(r"rank 1 has plan_path \(0: none, else a hash of the file\) \S+, rank 0 has \S+:", s) for s in said),
               "%s: stderr: %s" % (second, said))


@case
def impossible_options_fail(data):
    for words, args in (("heads cannot share 3", ["--model", "llama2", "--kv-heads", 3]),
                        ("choose gpt2 or llama2", ["--model", "llama3"]),
                        ("need --model llama2", ["--kv-heads", 2]),
                        ("leave it out", [*LLAMA, "--dropout", 0.1]),
                        ("even width", ["--model", "llama2", "--dim", 12]),
                        ("--temperature -1", ["--temperature", -1])):
        said = run("--data", data, *args, code=2)
        expect(words in said, "no '%s' in: %s" % (words, said))


if __name__ == "__main__":
    sys.exit(run_cases())
