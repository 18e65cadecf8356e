/* Context, stream and arrays as C++ objects, which free themselves, and errors as exceptions: softmax regression by gradient
 * descent. The logits come from the CPU; the loss and its gradient to the logits come from the GPU.
 *     c++ -std=c++11 -O2 examples/04_raii.cpp -o raii          (glibc older than 2.34: add -ldl)
 * Exit status: 0, 1 if the loss did not fall as it must, 2 if this machine lacks something, 3 for other errors. */
#define GPULOSS_IMPLEMENTATION
#include "../gpuloss.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct gpu_error : std::runtime_error {
    explicit gpu_error(gpuloss_status status)
        : std::runtime_error(gpuloss_last_error()), group(gpuloss_group_of(status)) {}
    gpuloss_status_group group;
};

static void check(gpuloss_status status) {
    if (status != GPULOSS_OK)
        throw gpu_error(status);
}

/* Frees in destructors, which print an error, because they must not throw. */
struct release {
    gpuloss_context *gpu;
    void operator()(gpuloss_context *context) const { gpuloss_destroy(context); }
    void operator()(CUstream_st *stream) const { print(gpuloss_stream_destroy(gpu, stream)); }
    void operator()(void *memory) const { print(gpuloss_free(gpu, memory)); }
    static void print(gpuloss_status status) {
        if (status != GPULOSS_OK)
            std::fprintf(stderr, "%s\n", gpuloss_last_error());
    }
};
typedef std::unique_ptr<gpuloss_context, release> context_ptr;
typedef std::unique_ptr<CUstream_st, release> stream_ptr;

static context_ptr make_context() {
    gpuloss_create_desc desc = {};
    desc.flags = GPULOSS_CHECK_POINTERS; /* while a program is new */
    gpuloss_context *context;
    check(gpuloss_create(&context, &desc));
    return context_ptr(context, release());
}

static stream_ptr make_stream(gpuloss_context *gpu) {
    CUstream_st *stream;
    check(gpuloss_stream_create(gpu, &stream));
    return stream_ptr(stream, release{gpu});
}

typedef std::vector<double> numbers;

/* Numbers on the GPU. */
class device_numbers {
  public:
    device_numbers(gpuloss_context *gpu, std::size_t size) : memory(nullptr, release{gpu}), elements(size) {
        void *address;
        check(gpuloss_alloc(gpu, &address, size * sizeof(double)));
        memory.reset(address);
    }
    void *get() const { return memory.get(); }
    void upload(const numbers &host, CUstream_st *stream) {
        check(gpuloss_upload(memory.get_deleter().gpu, get(), host.data(), bytes_of(host), stream));
    }
    void download(numbers &host, CUstream_st *stream) const {
        check(gpuloss_download(memory.get_deleter().gpu, host.data(), get(), bytes_of(host), stream));
    }

  private:
    std::size_t bytes_of(const numbers &host) const {
        if (host.size() != elements)
            throw std::invalid_argument("host: needs " + std::to_string(elements) + " numbers (got " +
                                        std::to_string(host.size()) + ")");
        return elements * sizeof(double);
    }
    std::unique_ptr<void, release> memory;
    std::size_t elements;
};

static const std::size_t rows = 96, features = 3, classes = 3;

/* The points lie around a corner of a triangle for each class; the last feature is 1, for the bias. */
static double point(std::size_t row, std::size_t feature) {
    const double corners[classes][features] = {{2, 0, 1}, {-1, 2, 1}, {-1, -2, 1}};
    return corners[row % classes][feature] + (feature < 2 ? 2 * std::sin(double(row * row + feature)) : 0);
}

static bool train() {
    numbers weights(classes * features), targets(rows * classes), logits(rows * classes), loss(1);
    double curvature = 0, before = std::log(double(classes)), fall_min = 0, fall_max = 0;
    for (std::size_t row = 0; row < rows; row++) {
        targets[row * classes + row % classes] = 1;
        for (std::size_t f = 0; f < features; f++) /* at most half the mean square of the points */
            curvature += point(row, f) * point(row, f) / double(rows) / 2;
    }

    const context_ptr gpu = make_context();
    const stream_ptr stream = make_stream(gpu.get());
    device_numbers gpu_logits(gpu.get(), logits.size()), gpu_targets(gpu.get(), targets.size()), gpu_loss(gpu.get(), 1);
    gpu_targets.upload(targets, stream.get());
    gpuloss_cross_entropy_desc d = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    d.logits = gpu_logits.get(), d.dtype = GPULOSS_F64, d.target_probabilities = gpu_targets.get();
    d.rows = rows, d.classes = classes, d.loss = gpu_loss.get();
    d.grad_logits = gpu_logits.get(); /* over the logits: they are not needed again */

    for (int step = 0; step <= 30; step++) {
        numbers gradient(weights.size());
        double square = 0;
        for (std::size_t i = 0; i < logits.size(); i++) {
            logits[i] = 0;
            for (std::size_t f = 0; f < features; f++)
                logits[i] += weights[i % classes * features + f] * point(i / classes, f);
        }
        gpu_logits.upload(logits, stream.get());
        check(gpuloss_cross_entropy(gpu.get(), &d, stream.get()));
        gpu_loss.download(loss, stream.get());
        gpu_logits.download(logits, stream.get());
        for (std::size_t i = 0; i < logits.size(); i++)
            for (std::size_t f = 0; f < features; f++)
                gradient[i % classes * features + f] += logits[i] * point(i / classes, f);
        for (std::size_t i = 0; i < weights.size(); i++) {
            square += gradient[i] * gradient[i];
            weights[i] -= gradient[i] / curvature;
        }
        /* Weights of 0 have the loss log(classes). A step of 1 / curvature along the gradient g of a convex loss lowers
         * it by at least g^2 / 2 / curvature. It lowers it by at most g^2 / curvature. Rounding: a loss has fewer than
         * 512 roundings of numbers below 64. */
        const double fall = before - loss[0], rounding = 512 * 64 / 9007199254740992.0;
        std::printf("step %2d  loss %.6f\n", step, loss[0]);
        if (!(fall >= fall_min - rounding && fall <= fall_max + rounding)) {
            std::printf("FAILED: the loss fell by %.6g instead of %.6g to %.6g\n", fall, fall_min, fall_max);
            return false;
        }
        before = loss[0];
        fall_max = square / curvature;
        fall_min = fall_max / 2;
    }
    return true;
}

int main() {
    try {
        return train() ? 0 : 1;
    } catch (const gpu_error &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return error.group == GPULOSS_GROUP_ENVIRONMENT ? 2 : 3;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 3;
    }
}
