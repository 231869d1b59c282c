// A compensated sum (Neumaier): the rounding errors of all additions are added up beside the sum.
struct Accumulator {
    REAL sum;
    REAL lost;
};

Accumulator add_to(const in Accumulator acc, const in REAL x) {
    REAL sum = acc.sum + x;
    REAL lost = FN(abs)(acc.sum) >= FN(abs)(x) ? (acc.sum - sum) + x : (x - sum) + acc.sum;
    return Accumulator(sum, acc.lost + lost);
}

// An infinite or NaN sum has no meaningful compensation.
REAL total(const in Accumulator acc) {
    return FN(abs)(acc.sum) < INFINITY ? acc.sum + acc.lost : acc.sum;
}
