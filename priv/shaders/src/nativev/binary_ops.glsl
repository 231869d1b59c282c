// The binary operations of NativeV by op code; comparisons give 0 or 1 in the operands' type.
layout(constant_id = 0) const int OP = 0;

REAL apply_op(const in REAL a, const in REAL b) {
    switch (OP) {
        case 0: return FN(add)(a, b);
        case 1: return FN(multiply)(a, b);
        case 2: return FN(subtract)(a, b);
        case 3: return FN(divide)(a, b);
        case 4: return FN(pow)(a, b);
        case 5: return FN(max)(a, b);
        case 6: return FN(min)(a, b);
        case 7: return REAL(FN(equal)(a, b));
        case 8: return REAL(FN(less)(a, b));
        case 9: return REAL(FN(greater)(a, b));
        default: return REAL(0);
    }
}
