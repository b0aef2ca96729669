// Tanh and Erf of sixteen lanes: FMA polynomials, no libm. Tests hold them to double.
// Included by sources that define the macros of simd/vec16-inl.h.
#pragma once

#include "simd/vec16-inl.h"

namespace kvasir::KVASIR_TARGET_NS {

KV_INLINE V16 Magnitude(V16 x) { return MaxMagnitude(x, Zero()); }  // |x|; NaN stays NaN
KV_INLINE V16 WithSignOf(V16 x, V16 magnitude) {
  return SelectLess(x, Zero(), Sub(Zero(), magnitude), magnitude);
}

// Computes tanh x, relative error below 2e-7; NaN stays NaN. |x| <= 0.625: x + x z p(z) with z = x
// x, p fitted to a relative error of 5e-9; beyond: 1 - 2 / (e^2|x| + 1) with the sign of x.
KV_INLINE V16 Tanh(V16 x) {
  const V16 magnitude = Magnitude(x), z = Mul(x, x);
  V16 p = Set(-5.7049783601537e-3f);
  p = Fma(p, z, Set(2.06390787275645e-2f));
  p = Fma(p, z, Set(-5.37397121520788e-2f));
  p = Fma(p, z, Set(1.33314421574700e-1f));
  p = Fma(p, z, Set(-3.33332819401791e-1f));
  const V16 low = Fma(Mul(x, z), p, x);
  const V16 e = Exp(Add(magnitude, magnitude));
  const V16 high = Sub(Set(1.0f), Div(Set(2.0f), Add(e, Set(1.0f))));
  return SelectLess(Set(0.625f), magnitude, WithSignOf(x, high), low);
}

// Computes erf x, relative error below 3e-7; NaN stays NaN. |x| <= 1: x p(x x), p fitted to a
// relative error of 1.2e-9. Beyond: 1 - e^(-x x) q(t), t = 1 / (1 + |x| / 2), q fitted to erfc(x)
// e^(x x) on
// [1, 4]; from 4 on, where erfc is below 2e-8, it is 1. The sign is that of x.
KV_INLINE V16 Erf(V16 x) {
  const V16 magnitude = Magnitude(x), z = Mul(x, x);
  V16 p = Set(7.853857665741926e-5f);
  p = Fma(p, z, Set(-8.010192507694053e-4f));
  p = Fma(p, z, Set(5.188327558404843e-3f));
  p = Fma(p, z, Set(-2.685381186816954e-2f));
  p = Fma(p, z, Set(1.128358514700465e-1f));
  p = Fma(p, z, Set(-3.761262582409016e-1f));
  p = Fma(p, z, Set(1.1283791657266873f));
  const V16 m = Min(magnitude, Set(4.0f));
  const V16 t = Div(Set(1.0f), Fma(m, Set(0.5f), Set(1.0f)));
  V16 q = Set(-2.3080165924053575e-1f);
  q = Fma(q, t, Set(6.366799907961797e-1f));
  q = Fma(q, t, Set(-6.446058861265858e-2f));
  q = Fma(q, t, Set(3.968020518928984e-1f));
  q = Fma(q, t, Set(2.597006196671227e-1f));
  q = Fma(q, t, Set(1.8224811093695132e-3f));
  const V16 high = Sub(Set(1.0f), Mul(ExpNonPositive(Sub(Zero(), Mul(m, m))), q));
  return SelectLess(Set(1.0f), magnitude, WithSignOf(x, high), Mul(x, p));
}

}  // namespace kvasir::KVASIR_TARGET_NS
