//! Bytes to a list of instructions, by the grammar of the SPIR-V specification.
//!
//! Every word is read through a bounds-checked cursor that only moves forwards, so any byte string ends in a module or
//! an error.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use rspirv::dr::Operand;
use rspirv::grammar::{INSTRUCTION_TABLE, Instruction as Grammar, LogicalOperand, OperandKind, OperandQuantifier};
use rspirv::spirv::{self, Op};

/// SPIR-V's universal limit on ids ("Id bound", section 2.17).
const MAX_BOUND: u32 = 0x003f_ffff;
const HEADER_WORDS: usize = 5;

/// One instruction; its words and ids lie in the [`Module`].
#[derive(Debug, Clone)]
pub struct Instruction {
    pub op: Op,
    /// The name of the operation without its "Op".
    pub name: &'static str,
    pub result_type: Option<u32>,
    pub result: Option<u32>,
    /// Position in the file, for error messages.
    pub at_word: usize,
    operands: Range<usize>,
    ids: Range<usize>,
}

/// The instructions of a module in file order.
#[derive(Debug)]
pub struct Module {
    words: Vec<u32>,
    ids: Vec<u32>,
    pub version: u32,
    pub instructions: Vec<Instruction>,
}

impl Module {
    /// The operand words after result type and result id.
    pub fn operands(&self, instruction: &Instruction) -> &[u32] {
        self.words.get(instruction.operands.clone()).unwrap_or(&[])
    }

    /// One operand word; every operand that the grammar requires is there.
    pub fn operand(&self, instruction: &Instruction, index: usize) -> u32 {
        self.operands(instruction).get(index).copied().unwrap_or(0)
    }

    /// The ids among the operands, without result type and result id.
    pub fn ids(&self, instruction: &Instruction) -> &[u32] {
        self.ids.get(instruction.ids.clone()).unwrap_or(&[])
    }
}

/// Reads a module; an error is a sentence for `Error::BadShader`.
pub fn parse(bytes: &[u8]) -> Result<Module, String> {
    if !bytes.len().is_multiple_of(4) {
        return Err(format!("{} bytes are not a whole number of words", bytes.len()));
    }
    let words: Vec<u32> = bytes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    let &[magic, version, _, bound, schema, ..] = words.as_slice() else {
        return Err("shorter than the five header words".into());
    };
    if magic == spirv::MAGIC_NUMBER.swap_bytes() {
        return Err("big-endian SPIR-V".into());
    }
    if magic != spirv::MAGIC_NUMBER {
        return Err(format!("not SPIR-V: the first word is {magic:#010x}"));
    }
    if version >> 16 != 1 || version & 0xff00_00ff != 0 || version > 0x0001_0600 {
        return Err(format!("unknown SPIR-V version {version:#010x}"));
    }
    if bound == 0 || bound > MAX_BOUND {
        return Err(format!("id bound {bound} is outside 1..{MAX_BOUND}"));
    }
    if schema != 0 {
        return Err(format!("reserved header word is {schema}"));
    }
    let mut reader = Reader { bound, literal_words: HashMap::new(), type_of: HashMap::new(), ids: Vec::new() };
    let mut instructions = Vec::new();
    let mut at = HEADER_WORDS;
    while let Some(&first) = words.get(at) {
        let instruction =
            reader.instruction(&words, at).map_err(|reason| format!("word {at}: {}: {reason}", opcode_name(first)))?;
        at += (first >> 16) as usize;
        instructions.push(instruction);
    }
    Ok(Module { ids: reader.ids, words, version, instructions })
}

fn opcode_name(word: u32) -> String {
    match grammar_of(word & 0xffff) {
        Some(grammar) => format!("Op{}", grammar.opname),
        None => format!("opcode {}", word & 0xffff),
    }
}

pub fn grammar_of(opcode: u32) -> Option<&'static Grammar<'static>> {
    static TABLE: OnceLock<HashMap<u32, &'static Grammar<'static>>> = OnceLock::new();
    let table = TABLE.get_or_init(|| INSTRUCTION_TABLE.iter().map(|g| (g.opcode as u32, g)).collect());
    table.get(&opcode).copied()
}

/// The words of one instruction that are still unread.
struct Cursor<'a> {
    words: &'a [u32],
    at: usize,
}

impl Cursor<'_> {
    fn is_empty(&self) -> bool {
        self.at >= self.words.len()
    }

    fn next(&mut self) -> Result<u32, String> {
        let word = self.words.get(self.at).copied().ok_or("operands are missing")?;
        self.at += 1;
        Ok(word)
    }

    /// Skips a literal string: UTF-8, ended by a zero byte, padded with zeros.
    fn string(&mut self) -> Result<(), String> {
        let mut text = Vec::new();
        loop {
            let bytes = self.next().map_err(|_| "a string has no end")?.to_le_bytes();
            let end = bytes.iter().position(|&b| b == 0);
            text.extend_from_slice(&bytes[..end.unwrap_or(4)]);
            if end.is_some() {
                break;
            }
        }
        match std::str::from_utf8(&text) {
            Ok(_) => Ok(()),
            Err(_) => Err("a string is not UTF-8".into()),
        }
    }
}

struct Reader {
    bound: u32,
    /// Words of a literal, by id of its integer or float type.
    literal_words: HashMap<u32, usize>,
    type_of: HashMap<u32, u32>,
    ids: Vec<u32>,
}

impl Reader {
    fn instruction(&mut self, words: &[u32], at: usize) -> Result<Instruction, String> {
        let first = words.get(at).copied().unwrap_or(0);
        let count = (first >> 16) as usize;
        if count == 0 {
            return Err("word count 0".into());
        }
        let own =
            words.get(at + 1..at + count).ok_or_else(|| format!("{count} words reach beyond the end of the file"))?;
        let grammar = grammar_of(first & 0xffff).ok_or("unknown instruction")?;
        let mut cursor = Cursor { words: own, at: 0 };
        let first_id = self.ids.len();
        let mut result_type = None;
        let mut result = None;
        let mut operands = grammar.operands;
        if let Some(rest) = strip(operands, OperandKind::IdResultType) {
            result_type = Some(self.id(cursor.next()?)?);
            operands = rest;
        }
        if let Some(rest) = strip(operands, OperandKind::IdResult) {
            result = Some(self.id(cursor.next()?)?);
            operands = rest;
        }
        let operands_start = at + 1 + cursor.at;
        match grammar.opcode {
            Op::Constant | Op::SpecConstant => {
                let words = self.literal_size(result_type)?;
                for _ in 0..words {
                    cursor.next()?;
                }
            }
            Op::Switch => self.switch(&mut cursor)?,
            Op::SpecConstantOp => self.spec_constant_op(&mut cursor)?,
            _ => self.operands(operands, &mut cursor)?,
        }
        if !cursor.is_empty() {
            return Err("has more words than operands".into());
        }
        if let (Some(result), Some(result_type)) = (result, result_type) {
            self.type_of.insert(result, result_type);
        }
        if let (Op::TypeInt | Op::TypeFloat, Some(result)) = (grammar.opcode, result) {
            let width = own.get(1).copied().unwrap_or(0);
            if !matches!(width, 8 | 16 | 32 | 64) {
                return Err(format!("numbers of {width} bits"));
            }
            self.literal_words.insert(result, if width == 64 { 2 } else { 1 });
        }
        Ok(Instruction {
            op: grammar.opcode,
            name: grammar.opname,
            result_type,
            result,
            at_word: at,
            operands: operands_start..at + count,
            ids: first_id..self.ids.len(),
        })
    }

    fn id(&self, id: u32) -> Result<u32, String> {
        if id == 0 || id >= self.bound {
            return Err(format!("id {id} is outside 1..{}", self.bound));
        }
        Ok(id)
    }

    fn take_id(&mut self, cursor: &mut Cursor) -> Result<u32, String> {
        let id = self.id(cursor.next()?)?;
        self.ids.push(id);
        Ok(id)
    }

    fn literal_size(&self, type_id: Option<u32>) -> Result<usize, String> {
        type_id
            .and_then(|id| self.literal_words.get(&id).copied())
            .ok_or_else(|| "a literal whose type is no integer or float".into())
    }

    fn switch(&mut self, cursor: &mut Cursor) -> Result<(), String> {
        let selector = self.take_id(cursor)?;
        let words = self.literal_size(self.type_of.get(&selector).copied())?;
        self.take_id(cursor)?;
        while !cursor.is_empty() {
            for _ in 0..words {
                cursor.next()?;
            }
            self.take_id(cursor)?;
        }
        Ok(())
    }

    fn spec_constant_op(&mut self, cursor: &mut Cursor) -> Result<(), String> {
        let grammar = grammar_of(cursor.next()?)
            .filter(|grammar| may_be_spec_constant(grammar.opcode))
            .ok_or("an operation that constants can't have")?;
        let is_result = |o: &&LogicalOperand| matches!(o.kind, OperandKind::IdResultType | OperandKind::IdResult);
        let results = grammar.operands.iter().take_while(is_result).count();
        self.operands(grammar.operands.get(results..).unwrap_or(&[]), cursor)
    }

    fn operands(&mut self, operands: &[LogicalOperand], cursor: &mut Cursor) -> Result<(), String> {
        for operand in operands {
            match operand.quantifier {
                OperandQuantifier::One => self.operand(operand.kind, cursor)?,
                OperandQuantifier::ZeroOrOne if cursor.is_empty() => {}
                OperandQuantifier::ZeroOrOne => self.operand(operand.kind, cursor)?,
                OperandQuantifier::ZeroOrMore => {
                    while !cursor.is_empty() {
                        self.operand(operand.kind, cursor)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn operand(&mut self, kind: OperandKind, cursor: &mut Cursor) -> Result<(), String> {
        match kind {
            OperandKind::IdRef | OperandKind::IdScope | OperandKind::IdMemorySemantics => {
                self.take_id(cursor)?;
            }
            OperandKind::LiteralString => cursor.string()?,
            OperandKind::LiteralInteger | OperandKind::LiteralFloat | OperandKind::LiteralExtInstInteger => {
                cursor.next()?;
            }
            OperandKind::PairIdRefLiteralInteger => {
                self.take_id(cursor)?;
                cursor.next()?;
            }
            OperandKind::PairIdRefIdRef => {
                self.take_id(cursor)?;
                self.take_id(cursor)?;
            }
            OperandKind::MemoryAccess => self.memory_access(cursor)?,
            _ => {
                let word = cursor.next()?;
                let value = enumerant(kind, word).ok_or_else(|| format!("{word} is no {kind:?}"))?;
                self.operands(&value.additional_operands(), cursor)?;
            }
        }
        Ok(())
    }

    /// Parameters follow in the order of their bits, literals and ids mixed.
    fn memory_access(&mut self, cursor: &mut Cursor) -> Result<(), String> {
        let word = cursor.next()?;
        let access = spirv::MemoryAccess::from_bits(word).ok_or_else(|| format!("{word:#x} is no MemoryAccess"))?;
        if access.contains(spirv::MemoryAccess::ALIGNED) {
            cursor.next()?;
        }
        for with_id in [
            spirv::MemoryAccess::MAKE_POINTER_AVAILABLE,
            spirv::MemoryAccess::MAKE_POINTER_VISIBLE,
            spirv::MemoryAccess::ALIAS_SCOPE_INTEL_MASK,
            spirv::MemoryAccess::NO_ALIAS_INTEL_MASK,
        ] {
            if access.contains(with_id) {
                self.take_id(cursor)?;
            }
        }
        Ok(())
    }
}

fn strip(operands: &'static [LogicalOperand], kind: OperandKind) -> Option<&'static [LogicalOperand]> {
    operands.split_first().filter(|(first, _)| first.kind == kind).map(|(_, rest)| rest)
}

/// The operations that `OpSpecConstantOp` may name in a shader (SPIR-V section 3.49.7).
fn may_be_spec_constant(op: Op) -> bool {
    matches!(
        op,
        Op::SConvert
            | Op::UConvert
            | Op::FConvert
            | Op::SNegate
            | Op::Not
            | Op::IAdd
            | Op::ISub
            | Op::IMul
            | Op::UDiv
            | Op::SDiv
            | Op::UMod
            | Op::SRem
            | Op::SMod
            | Op::ShiftRightLogical
            | Op::ShiftRightArithmetic
            | Op::ShiftLeftLogical
            | Op::BitwiseOr
            | Op::BitwiseXor
            | Op::BitwiseAnd
            | Op::VectorShuffle
            | Op::CompositeExtract
            | Op::CompositeInsert
            | Op::LogicalOr
            | Op::LogicalAnd
            | Op::LogicalNot
            | Op::LogicalEqual
            | Op::LogicalNotEqual
            | Op::Select
            | Op::IEqual
            | Op::INotEqual
            | Op::ULessThan
            | Op::SLessThan
            | Op::UGreaterThan
            | Op::SGreaterThan
            | Op::ULessThanEqual
            | Op::SLessThanEqual
            | Op::UGreaterThanEqual
            | Op::SGreaterThanEqual
            | Op::QuantizeToF16
    )
}

/// The value of an enumerated operand; none where the specification has no such value, or the kind has no place in a
/// compute shader.
fn enumerant(kind: OperandKind, word: u32) -> Option<Operand> {
    macro_rules! by_kind {
        (values: $($value:ident)*; bits: $($bits:ident)*) => {
            match kind {
                $(OperandKind::$value => spirv::$value::from_u32(word).map(Operand::$value),)*
                $(OperandKind::$bits => spirv::$bits::from_bits(word).map(Operand::$bits),)*
                _ => None,
            }
        };
    }
    by_kind!(
        values: AccessQualifier AddressingModel BuiltIn Capability ComponentType CooperativeMatrixLayout
            CooperativeMatrixUse CooperativeVectorMatrixLayout Decoration Dim ExecutionMode ExecutionModel FPDenormMode
            FPEncoding FPOperationMode FPRoundingMode FunctionParameterAttribute GroupOperation ImageChannelDataType
            ImageChannelOrder ImageFormat LinkageType MemoryModel OverflowModes PackedVectorFormat QuantizationModes
            Scope SourceLanguage StorageClass TensorClampMode;
        bits: CooperativeMatrixOperands CooperativeMatrixReduce FPFastMathMode FunctionControl ImageOperands LoopControl
            MemorySemantics RawAccessChainOperands SelectionControl TensorAddressingOperands
    )
}
