#include "simd/math.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvasir {
namespace {

double PowerOfTwo(int n) {
  const uint64_t bits = static_cast<uint64_t>(n + 1023) << 52;
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

}  // namespace

double Exp(double x) {
  if (x < -700) return 0;
  if (x > 709) return std::numeric_limits<double>::infinity();
  // x = n ln2 + r, |r| <= ln2/2; the Taylor series to r^14 leaves 1e-19.
  const double n = std::nearbyint(x * 1.4426950408889634074);
  double r = std::fma(n, -6.93147180369123816490e-01, x);
  r = std::fma(n, -1.90821492927058770002e-10, r);
  double p = 1.0;
  for (int k = 14; k >= 1; --k) p = std::fma(p * r, 1.0 / k, 1.0);
  const int half = static_cast<int>(n) / 2;
  return p * PowerOfTwo(half) * PowerOfTwo(static_cast<int>(n) - half);
}

double Log(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  int e = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | (uint64_t{1023} << 52);
  double m;
  std::memcpy(&m, &bits, sizeof(m));
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++e;
  }
  // log m = 2 atanh(z), z = (m - 1) / (m + 1), |z| <= 0.1716: z^23 / 23 is below 1e-19.
  const double z = (m - 1) / (m + 1), z2 = z * z;
  double series = 0;
  for (int k = 21; k >= 3; k -= 2) series = std::fma(series, z2, 1.0 / k);
  const double tail = std::fma(e, 1.90821492927058770002e-10, 2 * z * z2 * series);
  return std::fma(e, 6.93147180369123816490e-01, std::fma(2.0, z, tail));
}

void SinCos(double x, double* sin, double* cos) {
  // x = n pi/2 + r with pi/2 in three parts of 33 bits, fused (Cody and Waite).
  const double n = std::nearbyint(x * 0.63661977236758134308);
  double r = std::fma(n, -1.57079632673412561417e+00, x);
  r = std::fma(n, -6.07710050630396597660e-11, r);
  r = std::fma(n, -2.02226624879595063154e-21, r);
  const double r2 = r * r;
  double s = 0, c = 0;  // Taylor to r^17 and r^18: below 1e-18 at |r| = pi/4
  for (int k = 17; k >= 3; k -= 2) s = (s + 1.0) * (-r2 / (k * (k - 1)));
  for (int k = 18; k >= 2; k -= 2) c = (c + 1.0) * (-r2 / (k * (k - 1)));
  s = std::fma(s, r, r);
  c = 1.0 + c;
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      *sin = s, *cos = c;
      break;
    case 1:
      *sin = c, *cos = -s;
      break;
    case 2:
      *sin = -s, *cos = -c;
      break;
    default:
      *sin = -c, *cos = s;
      break;
  }
}

}  // namespace kvasir
