// The readable form of the tensor kernels: plain loops in the order of portable-1. Tests compare
// the bits of every target with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/activation.h"
#include "tensor/weight_format.h"

namespace kvasir::reference {

// x [rows][k], w [outputs][k], bias [outputs] or empty -> [rows][outputs].
std::vector<float> MatMul(std::span<const float> x, std::span<const float> w,
                          std::span<const float> bias, uint32_t rows, uint32_t k, uint32_t outputs);
// Multiplies by weights in groups of 32 columns, [outputs][groups], activations rounded to int8 in
// groups (tensor/quant.h). x [rows][k].
std::vector<float> QuantMatMul(std::span<const float> x, std::span<const WeightGroup> w,
                               WeightFormat format, std::span<const float> bias, uint32_t rows,
                               uint32_t k, uint32_t outputs);
// Adds sixteen running sums, then a tree that adds halves.
float SumOfSquares(std::span<const float> x);
std::vector<float> RmsNorm(std::span<const float> x, std::span<const float> w, float eps);
std::vector<float> LayerNorm(std::span<const float> x, std::span<const float> w,
                             std::span<const float> b, float eps);
// Computes the bits of a target's lanes in plain float arithmetic.
float Tanh(float x);
float Erf(float x);
float Activate(Activation act, float x);
float SoftCap(float cap, float x);  // NaN where x is not finite
// Computes the rotated part of one head, in place; cos, sin [x.size() / 2].
void Rope(std::span<float> x, std::span<const float> cos, std::span<const float> sin);

}  // namespace kvasir::reference
