// Elementary functions in double with the same bits on every machine, unlike libm's. For
// RoPE tables, the sampler and other code outside the vector kernels.
#pragma once

namespace kvasir {

double Exp(double x);  // relative error below 1e-15 on [-700, 709]; 0 below, +inf above
double Log(double x);  // error below 4e-16 * max(1, |log x|); x > 0 and normal
// Computes sin and cos of x radians, absolute error below 4e-16, |x| <= 2^30.
void SinCos(double x, double* sin, double* cos);

}  // namespace kvasir
