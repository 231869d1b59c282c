// Butterflies in place, of as many elements as the argument has: transforms that invocations compute in registers.
// T is a complex number, S a real one.
#ifndef FFT_BUTTERFLIES_GLSL
#define FFT_BUTTERFLIES_GLSL

T mul(const in T a, const in T b) { return T(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
// -i a
T turn(const in T a) { return T(a.y, -a.x); }

void dft2(inout T a, inout T b) {
    T t = a - b;
    a = a + b;
    b = t;
}

void dft4(inout T a, inout T b, inout T c, inout T d) {
    T p = a + c, q = a - c, r = b + d, s = turn(b - d);
    a = p + r;
    b = q + s;
    c = p - r;
    d = q - s;
}

const S HALF_ROOT = S(0.707106781186547524401lf);

void dft8(inout T a, inout T b, inout T c, inout T d, inout T e, inout T f, inout T g, inout T h) {
    dft4(a, c, e, g);
    dft4(b, d, f, h);
    d = T(d.x + d.y, d.y - d.x) * HALF_ROOT;
    f = turn(f);
    h = T(h.y - h.x, -h.x - h.y) * HALF_ROOT;
    dft2(a, b);
    dft2(c, d);
    dft2(e, f);
    dft2(g, h);
}

void dft(inout T x[2]) { dft2(x[0], x[1]); }
void dft(inout T x[4]) { dft4(x[0], x[1], x[2], x[3]); }

void dft(inout T x[8]) {
    dft8(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
    T y[8] = x;
    [[unroll]] for (uint k = 0u; k < 4u; ++k) {
        x[k] = y[2u * k];
        x[k + 4u] = y[2u * k + 1u];
    }
}

#define COLUMN(A, B, C, D, P, Q, U) \
    dft4(x[A], x[B], x[C], x[D]); \
    x[B] = mul(x[B], P); \
    x[C] = mul(x[C], Q); \
    x[D] = mul(x[D], U);

void dft(inout T x[16]) {
    const T w1 = T(S(0.923879532511286756128lf), S(-0.382683432365089771728lf));
    const T w2 = T(HALF_ROOT, -HALF_ROOT), w3 = T(S(0.382683432365089771728lf), S(-0.923879532511286756128lf));
    const T w4 = T(S(0.0lf), S(-1.0lf)), w6 = T(-HALF_ROOT, -HALF_ROOT);
    const T w9 = T(S(-0.923879532511286756128lf), S(0.382683432365089771728lf));
    dft4(x[0], x[4], x[8], x[12]);
    COLUMN(1, 5, 9, 13, w1, w2, w3)
    COLUMN(2, 6, 10, 14, w2, w4, w6)
    COLUMN(3, 7, 11, 15, w3, w6, w9)
    [[unroll]] for (uint k = 0u; k < 16u; k += 4u) dft4(x[k], x[k + 1u], x[k + 2u], x[k + 3u]);
    T y[16] = x;
    [[unroll]] for (uint k = 0u; k < 16u; ++k) x[k] = y[k % 4u * 4u + k / 4u];
}

const S C3[1] = S[](S(-0.5lf));
const S S3[1] = S[](S(0.866025403784438646764lf));
const S C7[3] = S[](
    S(0.623489801858733530525lf),
    S(-0.222520933956314404289lf),
    S(-0.900968867902419126236lf)
);
const S S7[3] = S[](
    S(0.781831482468029808708lf),
    S(0.974927912181823607018lf),
    S(0.433883739117558120476lf)
);
const S C11[5] = S[](
    S(0.841253532831181168862lf),
    S(0.415415013001886425529lf),
    S(-0.142314838273285140444lf),
    S(-0.654860733945285064057lf),
    S(-0.95949297361449738989lf)
);
const S S11[5] = S[](
    S(0.540640817455597582108lf),
    S(0.909631995354518371412lf),
    S(0.989821441880932732376lf),
    S(0.755749574354258283774lf),
    S(0.281732556841429697711lf)
);
const S C13[6] = S[](
    S(0.8854560256532098959lf),
    S(0.568064746731155802512lf),
    S(0.120536680255323053349lf),
    S(-0.35460488704253562597lf),
    S(-0.748510748171101098635lf),
    S(-0.970941817426052027157lf)
);
const S S13[6] = S[](
    S(0.464723172043768545656lf),
    S(0.82298386589365639458lf),
    S(0.992708874098053992801lf),
    S(0.93501624268541482344lf),
    S(0.663122658240795202377lf),
    S(0.239315664287557767149lf)
);

// Of a prime number R = 2 H + 1 of elements: pairs that are as far from the first are added and subtracted.
#define PRIME(R, H, COSINES, SINES) \
void dft(inout T x[R]) { \
    T plus[H], minus[H]; \
    T first = x[0]; \
    [[unroll]] for (uint k = 0u; k < H; ++k) { \
        plus[k] = x[k + 1u] + x[R - 1u - k]; \
        minus[k] = x[k + 1u] - x[R - 1u - k]; \
        x[0] += plus[k]; \
    } \
    [[unroll]] for (uint q = 1u; q <= H; ++q) { \
        T even = first, odd = T(S(0.0lf)); \
        [[unroll]] for (uint k = 1u; k <= H; ++k) { \
            uint turns = q * k % R; \
            bool mirrored = turns > H; \
            uint i = (mirrored ? R - turns : turns) - 1u; \
            even += plus[k - 1u] * COSINES[i]; \
            odd += minus[k - 1u] * (mirrored ? -SINES[i] : SINES[i]); \
        } \
        x[q] = even + turn(odd); \
        x[R - q] = even - turn(odd); \
    } \
}

PRIME(3u, 1u, C3, S3)
PRIME(7u, 3u, C7, S7)
PRIME(11u, 5u, C11, S11)
PRIME(13u, 6u, C13, S13)

void dft(inout T x[5]) {
    T a = x[0], b = x[1], c = x[2], d = x[3], e = x[4];
    T p = b + e, q = c + d, r = b - e, s = c - d;
    T sum = p + q, even = a - sum * S(0.25lf), difference = (p - q) * S(0.559016994374947424102lf);
    const S near = S(0.951056516295153572116lf), far = S(0.587785252292473129169lf);
    T v = turn(r * near + s * far), w = turn(r * far - s * near);
    T f = even + difference, g = even - difference;
    x[0] = a + sum;
    x[1] = f + v;
    x[4] = f - v;
    x[2] = g + w;
    x[3] = g - w;
}

// Of A * B elements, which have no common factor: as in I. J. Good, "The interaction algorithm and practical Fourier
// analysis", 1958, there are no roots between. OF_A is 1 modulo A and 0 modulo B, and OF_B the other way round.
#define COPRIME(A, B, OF_A, OF_B) \
void dft(inout T x[A * B]) { \
    T y[A * B]; \
    [[unroll]] for (uint j = 0u; j < B; ++j) { \
        T u[A]; \
        [[unroll]] for (uint i = 0u; i < A; ++i) u[i] = x[(i * B + j * A) % (A * B)]; \
        dft(u); \
        [[unroll]] for (uint i = 0u; i < A; ++i) y[i * B + j] = u[i]; \
    } \
    [[unroll]] for (uint i = 0u; i < A; ++i) { \
        T v[B]; \
        [[unroll]] for (uint j = 0u; j < B; ++j) v[j] = y[i * B + j]; \
        dft(v); \
        [[unroll]] for (uint j = 0u; j < B; ++j) x[(i * OF_A + j * OF_B) % (A * B)] = v[j]; \
    } \
}

COPRIME(2u, 3u, 3u, 4u)
COPRIME(2u, 5u, 5u, 6u)
COPRIME(4u, 3u, 9u, 4u)
COPRIME(3u, 5u, 10u, 6u)

void dft(inout T x[9]) {
    const T w1 = T(S(0.766044443118978035202lf), S(-0.642787609686539326323lf));
    const T w2 = T(S(0.173648177666930348852lf), S(-0.984807753012208059367lf));
    const T w4 = T(S(-0.939692620785908384054lf), S(-0.342020143325668733044lf));
    T y[9];
    [[unroll]] for (uint j = 0u; j < 3u; ++j) {
        T u[3] = T[](x[j], x[j + 3u], x[j + 6u]);
        dft(u);
        [[unroll]] for (uint i = 0u; i < 3u; ++i) y[3u * i + j] = u[i];
    }
    y[4] = mul(y[4], w1);
    y[5] = mul(y[5], w2);
    y[7] = mul(y[7], w2);
    y[8] = mul(y[8], w4);
    [[unroll]] for (uint i = 0u; i < 3u; ++i) {
        T v[3] = T[](y[3u * i], y[3u * i + 1u], y[3u * i + 2u]);
        dft(v);
        [[unroll]] for (uint j = 0u; j < 3u; ++j) x[i + 3u * j] = v[j];
    }
}

#endif
