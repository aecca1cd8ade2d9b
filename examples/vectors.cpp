// A C++ program with parameters in std::vector and its own momentum SGD. Four workers train a regression with three layers.
//
//     c++ -std=c++17 -O2 -I. examples/vectors.cpp -o vectors -lm -lpthread && build/ddprun -n 4 ./vectors
#define DREAMDDP_IMPLEMENTATION
#include "dreamddp.h"
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

struct layer {
    int                in, out;
    std::vector<float> w, g, m, x; // weights, then biases [(in + 1) * out]; their gradients; momentum; inputs of the step
    layer(int from, int to, std::mt19937 &random) : in(from), out(to)
    {
        std::normal_distribution<float> normal(0, 1 / std::sqrt(float(in)));
        w.resize(size_t(in + 1) * size_t(out));
        for (float &v : w) v = normal(random);
        g.resize(w.size()), m.resize(w.size());
    }
    std::vector<float> forward(const std::vector<float> &input, bool last)
    {
        std::vector<float> y;
        x = input;
        for (int o = 0; o < out; o++) {
            float s = w[size_t(in * out + o)];
            for (int i = 0; i < in; i++) s += w[size_t(o * in + i)] * x[size_t(i)];
            y.push_back(last ? s : std::tanh(s));
        }
        return y;
    }
    std::vector<float> backward(const std::vector<float> &y, std::vector<float> dy, bool last)
    {
        std::vector<float> dx(size_t(in), 0.0f);
        for (int o = 0; o < out; o++) {
            const float d = dy[size_t(o)] * (last ? 1 : 1 - y[size_t(o)] * y[size_t(o)]);
            g[size_t(in * out + o)] += d;
            for (int i = 0; i < in; i++) g[size_t(o * in + i)] += d * x[size_t(i)], dx[size_t(i)] += d * w[size_t(o * in + i)];
        }
        return dx;
    }
    void update(float lr)
    {
        for (size_t i = 0; i < w.size(); i++) m[i] = 0.9f * m[i] + g[i], w[i] -= lr * m[i], g[i] = 0;
    }
};

static void check(ddp_ctx *d, int bad)
{
    if (bad) throw std::runtime_error(ddp_last_error(d)->msg);
}

int main()
try {
    ddp_error err;
    std::unique_ptr<ddp_ctx, void (*)(ddp_ctx *)> d(ddp_open(nullptr, &err), ddp_close);
    if (!d) throw std::runtime_error(err.msg);
    std::mt19937 random(1), samples(2 + unsigned(ddp_rank(d.get())));
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<layer> net;
    for (int l = 0; l < 3; l++) net.emplace_back(l ? 32 : 2, l < 2 ? 32 : 1, random);
    for (size_t l = 0; l < net.size(); l++)
        check(d.get(), ddp_add_block(d.get(), ("layer " + std::to_string(l)).c_str(), net[l].w.data(), net[l].g.data(), net[l].w.size()));
    const ddp_optimizer own = ddp_own_update();
    check(d.get(), ddp_set_optimizer(d.get(), &own));
    float mean = 0;
    for (int step = 1; step <= 300; step++) {
        const float a = uniform(samples), b = uniform(samples), target = std::sin(3 * a) * b;
        std::vector<std::vector<float>> y{{a, b}};
        for (size_t l = 0; l < net.size(); l++) y.push_back(net[l].forward(y.back(), l + 1 == net.size()));
        const float miss = y.back()[0] - target;
        std::vector<float> dy{miss};
        for (size_t l = net.size(); l-- > 0;) {
            dy = net[l].backward(y[l + 1], dy, l + 1 == net.size());
            check(d.get(), ddp_backward_end(d.get(), int(l)));
        }
        check(d.get(), ddp_step_end(d.get()));
        for (layer &l : net) l.update(0.02f);
        mean += miss * miss / 100;
        if (step % 100 == 0) {
            if (ddp_rank(d.get()) == 0) std::printf("step %d  squared miss %.4f\n", step, double(mean));
            mean = 0;
        }
    }
    check(d.get(), ddp_sync_all(d.get()));
    std::printf("rank %d  first weight %.6f\n", ddp_rank(d.get()), double(net[0].w[0]));
} catch (const std::exception &e) {
    std::fprintf(stderr, "vectors: %s\n", e.what());
    return 1;
}
