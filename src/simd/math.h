// Elementary functions of our own in double: the same bits on every machine, unlike a libm's. For
// RoPE tables, the sampler and other code outside the vector kernels.
#pragma once

namespace kvasir {

double Exp(double x);  // relative error below 4e-16 on [-700, 700]; 0 below, +inf above
double Log(double x);  // absolute error below 1 ulp or so of the result; x > 0 and normal
// sin and cos of x radians, absolute error below 2e-16 * (1 + |x| * 1e-9), |x| <= 1e9.
void SinCos(double x, double* sin, double* cos);

}  // namespace kvasir
