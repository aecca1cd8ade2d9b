/* The device of a trainer: the CPU, or a GPU in a build with nvcc. */
#ifndef EXAMPLES_TRAINER_DEVICE_H
#define EXAMPLES_TRAINER_DEVICE_H

#ifdef DREAMDDP_CUDA_CUH
/* Configures the CUDA backend. The ranks of a machine distribute its GPUs among themselves. CUDA is not
 * called before the ranks start. */
static ddp_status choose_gpu(program *p, ddp_error *err)
{
    const char *numbers = p->numbers ? p->numbers : "f32";
    ddp_cuda_numbers as = DDP_CUDA_F32;

    if (!strcmp(numbers, "tf32"))
        as = DDP_CUDA_TF32;
    else if (!strcmp(numbers, "bf16"))
        as = DDP_CUDA_BF16;
    else if (strcmp(numbers, "f32"))
        return refuse(err, "unknown --numbers %s; choose f32, tf32 or bf16", numbers);
    p->backend = ddp_cuda(as, -1);
    p->cfg.backend = &p->backend;
    p->cfg.device.nccl = p->both_links ? 2 : p->nccl;
    return DDP_OK;
}
#else
static ddp_status choose_gpu(program *p, ddp_error *err)
{
    snprintf(err->msg, sizeof err->msg,
             "--device cuda: this build has no CUDA; build the program with "
             "nvcc -O3 -arch=sm_90a -x cu -I. examples/train/%s.c -o build/%s_cuda -lcublas -lcublasLt "
             "-lnccl",
             p->name, p->name);
    return err->code = DDP_FAILED;
}
#endif

static ddp_status choose_device(program *p, ddp_error *err)
{
    if (!p->device || !strcmp(p->device, "cpu")) {
        if (!p->numbers && !p->nccl && !p->both_links) return DDP_OK;
        return refuse(err, "--numbers, --nccl and --both-links need --device cuda; the CPU computes in f32");
    }
    if (strcmp(p->device, "cuda")) return refuse(err, "unknown device %s; choose cpu or cuda", p->device);
    if (p->emulate)
        return refuse(err, "--device cuda cannot be combined with --emulate-compute, which computes nothing");
    return choose_gpu(p, err);
}

#endif /* EXAMPLES_TRAINER_DEVICE_H */
