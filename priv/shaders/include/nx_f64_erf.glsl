// erf, erfc and erf_inv for f64. Below 0.5 erf is x + x P(x^2); above, erfc x = exp(-x^2) E(x) with the
// scaled function E expanded about the middle of each interval, and about infinity. The first terms are
// kept as dd. Coefficients: Chebyshev interpolation with 500 bits.
#ifndef NX_F64_ERF_GLSL
#define NX_F64_ERF_GLSL
#include "nx_f64_core.glsl"
#include "nx_f64_exp.glsl"
#include "nx_f64_log.glsl"

// c + s t + t^2 p with the first two terms exact.
dvec2 nx_f64_dd_expansion(const in dvec2 c, const in dvec2 s, const in double t, const in double p) {
    dvec2 m = nx_f64_two_product(s.x, t);
    dvec2 a = nx_f64_two_sum(c.x, m.x);
    return nx_f64_fast_two_sum(a.x, a.y + (c.y + (m.y + t * fma(p, t, s.y))));
}

// exp(x^2) erfc(x) for x >= 0.5.
dvec2 nx_f64_erfc_scaled(const in double x) {
    if (x < 1.25lf) {
        double t = x - 0.875lf;
        double p = -7.07596190246727e-08lf;
        p = fma(p, t, 2.435821600021026e-07lf);
        p = fma(p, t, -7.780760522642742e-07lf);
        p = fma(p, t, 2.538655512921812e-06lf);
        p = fma(p, t, -8.064490093891e-06lf);
        p = fma(p, t, 2.4845172511082168e-05lf);
        p = fma(p, t, -7.415789638040778e-05lf);
        p = fma(p, t, 0.0002139573432817164lf);
        p = fma(p, t, -0.0005950811533704891lf);
        p = fma(p, t, 0.001590482827253836lf);
        p = fma(p, t, -0.0040695376625077455lf);
        p = fma(p, t, 0.009922776760800245lf);
        p = fma(p, t, -0.022925811484500135lf);
        p = fma(p, t, 0.049828415331376684lf);
        p = fma(p, t, -0.1009143921262048lf);
        p = fma(p, t, 0.1879569237731824lf);
        return nx_f64_dd_expansion(dvec2(0.464311583202669lf, -1.851963727754574e-17lf), dvec2(-0.3158338964908418lf, -6.1114614254275555e-18lf), t, p);
    }
    if (x < 2.5lf) {
        double t = x - 1.875lf;
        double p = 1.592916749861052e-10lf;
        p = fma(p, t, -6.611135020935379e-10lf);
        p = fma(p, t, 2.4248196768731644e-09lf);
        p = fma(p, t, -9.627673234934187e-09lf);
        p = fma(p, t, 3.760935532161762e-08lf);
        p = fma(p, t, -1.4304973527351286e-07lf);
        p = fma(p, t, 5.314300210693311e-07lf);
        p = fma(p, t, -1.9261525445602535e-06lf);
        p = fma(p, t, 6.800126440126326e-06lf);
        p = fma(p, t, -2.334409389596078e-05lf);
        p = fma(p, t, 7.777080714331819e-05lf);
        p = fma(p, t, -0.000250868684217487lf);
        p = fma(p, t, 0.0007814620115443337lf);
        p = fma(p, t, -0.0023432816664893203lf);
        p = fma(p, t, 0.006738039159298877lf);
        p = fma(p, t, -0.01849202758990705lf);
        p = fma(p, t, 0.04814863004967349lf);
        return nx_f64_dd_expansion(dvec2(0.2694299851646704lf, 2.4834579724134718e-17lf), dvec2(-0.11801672272799837lf, -5.472512494547427e-18lf), t, p);
    }
    double y = nx_f64_reciprocal(x);
    dvec2 i = nx_f64_dd_divide(dvec2(1.0lf, 0.0lf), dvec2(x, 0.0lf));
    double z = y * y;
    double q;
    if (x < 5.0lf) {
        double p = -35640978.85452579lf;
        p = fma(p, z, 64589645.24126719lf);
        p = fma(p, z, -55204435.017033696lf);
        p = fma(p, z, 29672616.65124552lf);
        p = fma(p, z, -11300960.932341704lf);
        p = fma(p, z, 3265809.2417484163lf);
        p = fma(p, z, -751969.6148602513lf);
        p = fma(p, z, 144015.23498878742lf);
        p = fma(p, z, -24022.328919484327lf);
        p = fma(p, z, 3691.012942396076lf);
        p = fma(p, z, -559.5733737921602lf);
        p = fma(p, z, 90.28172398993911lf);
        p = fma(p, z, -16.62143839980117lf);
        p = fma(p, z, 3.7016201706600445lf);
        p = fma(p, z, -1.057842014410608lf);
        p = fma(p, z, 0.4231420585864759lf);
        p = fma(p, z, -0.2820947911946096lf);
        q = p;
    } else {
        double p = -32900186.642064538lf;
        p = fma(p, z, 12011512.280336214lf);
        p = fma(p, z, -2241056.2439896027lf);
        p = fma(p, z, 303587.9151772994lf);
        p = fma(p, z, -36415.70853647708lf);
        p = fma(p, z, 4436.4458488910905lf);
        p = fma(p, z, -595.2000076384421lf);
        p = fma(p, z, 91.63234371139774lf);
        p = fma(p, z, -16.66119378923932lf);
        p = fma(p, z, 3.7024940103824657lf);
        p = fma(p, z, -1.057855468803687lf);
        p = fma(p, z, 0.423142187660333lf);
        p = fma(p, z, -0.28209479177387786lf);
        q = p;
    }
    dvec2 s = nx_f64_fast_two_sum(0.5641895835477563lf, z * q);
    return nx_f64_dd_multiply(dvec2(s.x, s.y + 7.66772980658294e-18lf), i);
}

// erf(x) for |x| <= 0.5.
dvec2 nx_f64_erf_small(const in double x) {
    double z = x * x;
    double p = -1.9073214809645617e-07lf;
    p = fma(p, z, 1.6900215334146758e-06lf);
    p = fma(p, z, -1.4949466637739829e-05lf);
    p = fma(p, z, 0.00012056010224191495lf);
    p = fma(p, z, -0.0008548338283552118lf);
    p = fma(p, z, 0.005223977737726977lf);
    p = fma(p, z, -0.026866170651681207lf);
    p = fma(p, z, 0.11283791670975774lf);
    p = fma(p, z, -0.3761263890318405lf);
    p = fma(p, z, 0.1283791670955126lf);
    return nx_f64_fast_two_sum(x, x * p);
}

// The fraction of erfc(x) for 0.5 <= x <= 28; erfc(x) is that times 2^n with n that of exp(-x^2).
dvec2 nx_f64_erfc_fraction(const in dvec2 s, const in double n, const in double x) {
    dvec2 e = nx_f64_exp_fraction(nx_f64_exp_reduce(s, n));
    return nx_f64_dd_multiply(e, nx_f64_erfc_scaled(x));
}

// max error: 0.80 ulp over 4 10^6 inputs.
double nx_erf_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    if (nx_f64_isnan(x)) {
        return x;
    }
    if (a < 0.5lf) {
        dvec2 r = nx_f64_erf_small(x);
        return r.x + r.y;
    }
    a = a > 6.0lf ? 6.0lf : a;
    dvec2 s = -nx_f64_two_product(a, a);
    double n = nx_f64_exp_n(s.x);
    dvec2 c = nx_f64_erfc_fraction(s, n, a) * nx_f64_pow2(int(n));
    dvec2 r = nx_f64_fast_two_sum(1.0lf, -c.x);
    return nx_f64_with_sign(r.x + (r.y - c.y), nx_f64_high(x));
}

// log(x exp(x^2) erfc(x)) + 0.5625 for x >= 1.25: a rational function of 1 / x^2 of fdlibm (Sun Microsystems, 1993).
double nx_f64_erfc_exponent(const in double x) {
    double s = nx_f64_mantissa_quotient(1.0lf, x * x);
    double s2 = s * s;
    double s4 = s2 * s2;
    double s6 = s4 * s2;
    if (x < 2.857142857142857lf) {
        double r = (-9.86494403484714822705e-03lf + s * -6.93858572707181764372e-01lf)
            + s2 * (-1.05586262253232909814e+01lf + s * -6.23753324503260060396e+01lf);
        r = r + s4 * (-1.62396669462573470355e+02lf + s * -1.84605092906711035994e+02lf);
        r = r + s6 * (-8.12874355063065934246e+01lf + s * -9.81432934416914548592e+00lf);
        double q = (1.0lf + s * 1.96512716674392571292e+01lf)
            + s2 * (1.37657754143519042600e+02lf + s * 4.34565877475229228821e+02lf);
        q = q + s4 * (6.45387271733267880336e+02lf + s * 4.29008140027567833386e+02lf);
        q = q + s6 * (1.08635005541779435134e+02lf + s * 6.57024977031928170135e+00lf);
        return nx_f64_mantissa_quotient(r, q + (s4 * s4) * -6.04244152148580987438e-02lf);
    }
    double r = (-9.86494292470009928597e-03lf + s * -7.99283237680523006574e-01lf)
        + s2 * (-1.77579549177547519889e+01lf + s * -1.60636384855821916062e+02lf);
    r = r + s4 * (-6.37566443368389627722e+02lf + s * -1.02509513161107724954e+03lf);
    r = r + s6 * -4.83519191608651397019e+02lf;
    double q = (1.0lf + s * 3.03380607434824582924e+01lf)
        + s2 * (3.25792512996573918826e+02lf + s * 1.53672958608443695994e+03lf);
    q = q + s4 * (3.19985821950859553908e+03lf + s * 2.55305040643316442583e+03lf);
    q = q + s6 * (4.74528541206955367215e+02lf + s * -2.24409524465858183362e+01lf);
    return nx_f64_mantissa_quotient(r, q);
}

// Multiples of 1/8 in the steps of fdlibm, from which the C library under BinaryBackend has it: what Nx's documentation
// prints. Those steps lose 2.7 ulp elsewhere.
// max error: 0.80 ulp over 4 10^6 inputs, 1.61 at multiples of 1/8.
double nx_erfc_f64(const in double x) {
    if (nx_f64_isnan(x)) {
        return x;
    }
    double a = nx_f64_magnitude(x);
    if (a < 0.5lf) {
        dvec2 r = nx_f64_erf_small(x);
        dvec2 t = nx_f64_fast_two_sum(1.0lf, -r.x);
        return t.x + (t.y - r.y);
    }
    if (x >= 1.25lf && x < 26.0lf && floor(8.0lf * x) == 8.0lf * x) {
        double z = nx_f64_bits(nx_f64_high(x), 0u);
        double e = nx_exp_f64(-z * z - 0.5625lf);
        return nx_f64_mantissa_quotient(e * nx_exp_f64((z - x) * (z + x) + nx_f64_erfc_exponent(x)), x);
    }
    a = a > 28.0lf ? 28.0lf : a;
    dvec2 s = -nx_f64_two_product(a, a);
    double n = nx_f64_exp_n(s.x);
    dvec2 c = nx_f64_erfc_fraction(s, n, a);
    if (x > 0.0lf) {
        return nx_f64_scale(c.x + c.y, int(n));
    }
    c = c * nx_f64_pow2(n < -200.0lf ? -200 : int(n));
    dvec2 r = nx_f64_fast_two_sum(2.0lf, -c.x);
    return r.x + (r.y - c.y);
}

// erf_inv(x) for 1 - 1e-6 < x < 1 from r = sqrt(-log((1 - x) / 2)), in which it is nearly linear.
dvec2 nx_f64_erf_inv_tail(const in dvec2 r) {
    double t = (r.x - 5.0lf) + r.y;
    double p = 4.287356559911671e-14lf;
    p = fma(p, t, -2.3976618169505994e-13lf);
    p = fma(p, t, 1.0753903079592917e-12lf);
    p = fma(p, t, -5.7620748712122676e-12lf);
    p = fma(p, t, 3.168614796800402e-11lf);
    p = fma(p, t, -1.727624105335213e-10lf);
    p = fma(p, t, 9.458905556730219e-10lf);
    p = fma(p, t, -5.2096579981489445e-09lf);
    p = fma(p, t, 2.886337955837697e-08lf);
    p = fma(p, t, -1.6095052873002382e-07lf);
    p = fma(p, t, 9.040849774192507e-07lf);
    p = fma(p, t, -5.1220338903854425e-06lf);
    p = fma(p, t, 2.9325672681823304e-05lf);
    p = fma(p, t, -0.0001702265381626095lf);
    p = fma(p, t, 0.0010074166809497743lf);
    p = fma(p, t, -0.006143650395786035lf);
    double d = ((r.x - 5.0lf) - t) + r.y;
    return nx_f64_dd_expansion(dvec2(4.707849521913033lf, 3.700946206134206e-16lf + d * 1.0395595947667131lf), dvec2(1.0395595947667131lf, 1.658378977983794e-17lf), t, p);
}

// The approximation of M. Giles (Approximating the erfinv function, 2010) that BinaryBackend computes; beyond its
// domain, where 1 - |x| is below 2^-24, the inverse itself. Infinite at -1 and 1, NaN beyond.
// max error: 3e-7 of the value, 0.90 ulp beyond the domain of the approximation
double nx_erf_inv_f64(const in double x) {
    double a = nx_f64_magnitude(x);
    if (nx_f64_isnan(x) || a > 1.0lf) {
        return nx_f64_nan();
    }
    if (a == 1.0lf) {
        return nx_f64_infinity(nx_f64_high(x));
    }
    if (nx_f64_iszero(x)) {
        return 0.0lf;
    }
    double w = -nx_log_f64((1.0lf - x) * (1.0lf + x));
    if (w > 16.0lf) {
        dvec2 y = nx_f64_erf_inv_tail(nx_f64_dd_sqrt(-nx_f64_dd_log(0.5lf - 0.5lf * a)));
        return nx_f64_with_sign(y.x + y.y, nx_f64_high(x));
    }
    double p;
    if (w < 5.0lf) {
        w = w - 2.5lf;
        p = 2.81022636e-08lf;
        p = p * w + 3.43273939e-07lf;
        p = p * w + -3.5233877e-06lf;
        p = p * w + -4.39150654e-06lf;
        p = p * w + 0.00021858087lf;
        p = p * w + -0.00125372503lf;
        p = p * w + -0.00417768164lf;
        p = p * w + 0.246640727lf;
        p = p * w + 1.50140941lf;
    } else {
        w = nx_f64_sqrt_core(w) - 3.0lf;
        p = -0.000200214257lf;
        p = p * w + 0.000100950558lf;
        p = p * w + 0.00134934322lf;
        p = p * w + -0.00367342844lf;
        p = p * w + 0.00573950773lf;
        p = p * w + -0.0076224613lf;
        p = p * w + 0.00943887047lf;
        p = p * w + 1.00167406lf;
        p = p * w + 2.83297682lf;
    }
    return p * x;
}

#endif
