// The moduli of products by residues, no two of which have a divisor in common, and constants of arithmetic with them,
// which a test computes anew (residues/tests.rs).
#define MOST_MODULI 18
const uint MODULUS[MOST_MODULI] = uint[](
    256u, 255u, 253u, 251u, 247u, 241u, 239u, 233u, 229u, 227u, 223u, 217u, 211u, 199u, 197u, 193u, 191u, 181u);
// Above zero by this many times 2^32, a multiple of no modulus, are whole numbers of at most 61 bits.
#define OFFSET_HIGH 0x20000000u
// What is left of 2^22, of 2^44 and of 128 less the offset by a modulus, and 2^39 by it, rounded up.
const uvec4 SPLIT[MOST_MODULI] = uvec4[](
    uvec4(0u, 0u, 128u, 0x80000000u),
    uvec4(64u, 16u, 96u, 0x80808081u),
    uvec4(70u, 93u, 225u, 0x81848da9u),
    uvec4(94u, 51u, 88u, 0x828cbfbfu),
    uvec4(244u, 9u, 152u, 0x84a9f9c9u),
    uvec4(181u, 226u, 130u, 0x87f78088u),
    uvec4(93u, 45u, 169u, 0x891ac73bu),
    uvec4(71u, 148u, 120u, 0x8ca29c05u),
    uvec4(169u, 165u, 8u, 0x8f1779dau),
    uvec4(25u, 171u, 115u, 0x905a3864u),
    uvec4(120u, 128u, 94u, 0x92f11385u),
    uvec4(128u, 109u, 126u, 0x97012e03u),
    uvec4(46u, 6u, 93u, 0x9b4c6f9fu),
    uvec4(180u, 162u, 162u, 0xa4a9cf1eu),
    uvec4(174u, 135u, 145u, 0xa655c43au),
    uvec4(28u, 12u, 21u, 0xa9c84a48u),
    uvec4(135u, 80u, 77u, 0xab8f69e3u),
    uvec4(172u, 81u, 32u, 0xb509e68bu));
