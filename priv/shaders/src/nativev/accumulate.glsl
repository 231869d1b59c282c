// A sum in twice the precision: the rounding errors of all additions are added up beside it (TwoSum, then
// renormalised).
struct Accumulator {
    REAL sum;
    REAL lost;
};

Accumulator add_to(const in Accumulator acc, const in REAL x) {
    REAL sum = acc.sum + x;
    REAL part = sum - acc.sum;
    REAL lost = ((acc.sum - (sum - part)) + (x - part)) + acc.lost;
    REAL high = sum + lost;
    // An infinite or NaN sum has no meaningful rest.
    return FN(abs)(high) < INFINITY ? Accumulator(high, lost - (high - sum)) : Accumulator(sum, REAL(0));
}
