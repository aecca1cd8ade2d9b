/* Where a trainer computes: on the CPU, or on a GPU in a build by nvcc. */
#ifndef EXAMPLES_TRAINER_DEVICE_H
#define EXAMPLES_TRAINER_DEVICE_H

#ifdef DREAMDDP_CUDA_CUH
/* The ranks of a machine share its GPUs out. Nothing is asked of CUDA before they are started. */
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
             "--device cuda: this build has no CUDA; build one with "
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
        return refuse(err,
                      "--device cuda and --emulate-compute, which computes nothing: leave one of them out");
    return choose_gpu(p, err);
}

#endif /* EXAMPLES_TRAINER_DEVICE_H */
