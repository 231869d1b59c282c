// Of eight neighbours of a row, and of those of the row 8 below: what a matrix holds, the first or the second of two.
#define HALF(low, high, k) uvec4(low[2u * (k)], low[2u * (k) + 1u], high[2u * (k)], high[2u * (k) + 1u])
