//! Fills the slots of a template: imports library functions, emits straight-line code (code.rs), assembles the module
//! (finish.rs).

use std::collections::{HashMap, HashSet};

use nx_vulkan_ir::{Error, Result};
use rspirv::dr::{Block, Function, Instruction, Module, Operand};
use rspirv::spirv::{BuiltIn, Decoration, ExecutionMode, Op, StorageClass, Word};

use super::library::{FunctionRef, Library, is_aggregate};
use super::modes::FloatModes;
use super::templates;

mod code;
mod finish;

pub use code::{Code, Rare};

/// Signature of a function: result and parameter types, as ids of the kernel's module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// What it returns.
    pub result: Word,
    /// What it takes.
    pub parameters: Vec<Word>,
}

/// A module under construction.
#[derive(Debug)]
pub struct Linker<'l> {
    library: &'l Library,
    name: String,
    pub(super) module: Module,
    pub(super) next_id: Word,
    /// Ids of types, constants and extended instruction sets by their instruction without result id.
    globals: HashMap<Instruction, Word>,
    imported: HashMap<FunctionRef, (Word, Signature)>,
    imported_globals: HashMap<(usize, Word), Word>,
    /// Block-decorated structs around a runtime array, by element type.
    blocks: HashMap<Word, Word>,
    /// The same for what nobody writes while kernels read it.
    unwritten_blocks: HashMap<Word, Word>,
    /// The template's block of push constants.
    pub push_variable: Option<Word>,
    /// Words of push constants that code reads.
    pub push_words: u32,
    /// Words of parameters come from a table in memory rather than from push constants.
    pub table: bool,
    /// What may be assumed of arithmetic.
    pub modes: FloatModes,
    /// Neighbours are accessed 8 bytes at a time.
    pub pairs: bool,
    /// 16-bit floats of the template are bf16.
    pub bfloat16: bool,
    /// It makes no difference which NaN is loaded.
    pub any_nan: bool,
    /// Nobody writes what is loaded while the kernel runs, so that loads may be moved past all stores.
    pub unwritten: bool,
    /// It makes no difference which sign a zero has.
    pub any_zero: bool,
}

impl<'l> Linker<'l> {
    /// Starts from the template of that name.
    pub fn new(library: &'l Library, name: &str, table: bool, modes: FloatModes) -> Result<Linker<'l>> {
        let bad = |reason: String| Error::BadShader { path: format!("template/{name}.spv"), reason };
        let module = rspirv::dr::load_words(templates::template(name)?).map_err(|e| bad(e.to_string()))?;
        Ok(Linker::around(library, name, module, table, modes))
    }

    /// Goes on with a module.
    pub(super) fn around(
        library: &'l Library,
        name: &str,
        module: Module,
        table: bool,
        modes: FloatModes,
    ) -> Linker<'l> {
        let next_id = module.header.as_ref().map_or(0, |h| h.bound);
        let mut globals = HashMap::new();
        for inst in module.types_global_values.iter().chain(&module.ext_inst_imports) {
            if let Some(id) = inst.result_id
                && !is_aggregate(inst)
                && inst.class.opcode != Op::Variable
            {
                globals.entry(without_id(inst)).or_insert(id);
            }
        }
        let push_variable = module
            .types_global_values
            .iter()
            .find(|i| {
                i.class.opcode == Op::Variable
                    && i.operands.first() == Some(&Operand::StorageClass(StorageClass::PushConstant))
            })
            .and_then(|i| i.result_id);
        Linker {
            library,
            name: name.to_string(),
            module,
            next_id,
            globals,
            imported: HashMap::new(),
            imported_globals: HashMap::new(),
            blocks: HashMap::new(),
            unwritten_blocks: HashMap::new(),
            unwritten: false,
            push_variable,
            push_words: 0,
            table,
            modes,
            pairs: false,
            bfloat16: false,
            any_nan: false,
            any_zero: false,
        }
    }

    /// That the template does not fit, and why.
    pub fn bad(&self, reason: impl Into<String>) -> Error {
        Error::BadShader { path: format!("template/{}.spv", self.name), reason: reason.into() }
    }

    /// A new id.
    pub fn fresh(&mut self) -> Word {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// The id of a type, constant or extended instruction set, declared once.
    pub fn global(&mut self, opcode: Op, result_type: Option<Word>, operands: Vec<Operand>) -> Word {
        let key = Instruction::new(opcode, result_type, None, operands);
        if let Some(&id) = self.globals.get(&key) {
            return id;
        }
        let id = self.fresh();
        let mut inst = key.clone();
        inst.result_id = Some(id);
        if opcode == Op::ExtInstImport {
            self.module.ext_inst_imports.push(inst);
        } else {
            self.module.types_global_values.push(inst);
        }
        self.globals.insert(key, id);
        id
    }

    /// An unsigned integer type.
    pub fn type_uint(&mut self, bits: u32) -> Word {
        self.global(Op::TypeInt, None, vec![Operand::LiteralBit32(bits), Operand::LiteralBit32(0)])
    }

    /// A signed integer type.
    pub fn type_int(&mut self, bits: u32) -> Word {
        self.global(Op::TypeInt, None, vec![Operand::LiteralBit32(bits), Operand::LiteralBit32(1)])
    }

    /// A float type.
    pub fn type_float(&mut self, bits: u32) -> Word {
        self.global(Op::TypeFloat, None, vec![Operand::LiteralBit32(bits)])
    }

    /// The type of truth values.
    pub fn type_bool(&mut self) -> Word {
        self.global(Op::TypeBool, None, vec![])
    }

    /// A vector type.
    pub fn type_vector(&mut self, component: Word, count: u32) -> Word {
        self.global(Op::TypeVector, None, vec![Operand::IdRef(component), Operand::LiteralBit32(count)])
    }

    /// A matrix type of so many columns.
    pub fn type_matrix(&mut self, column: Word, count: u32) -> Word {
        self.global(Op::TypeMatrix, None, vec![Operand::IdRef(column), Operand::LiteralBit32(count)])
    }

    /// A pointer type.
    pub(crate) fn type_pointer(&mut self, class: StorageClass, pointee: Word) -> Word {
        self.global(Op::TypePointer, None, vec![Operand::StorageClass(class), Operand::IdRef(pointee)])
    }

    /// False.
    pub fn const_false(&mut self) -> Word {
        let ty = self.type_bool();
        self.global(Op::ConstantFalse, Some(ty), vec![])
    }

    /// True.
    pub fn const_true(&mut self) -> Word {
        let ty = self.type_bool();
        self.global(Op::ConstantTrue, Some(ty), vec![])
    }

    /// Whether fma rounds once, so that twins `f_fused` are called.
    pub fn fuses(&self) -> bool {
        self.modes.fused
    }

    /// An unsigned number of 32 bits.
    pub fn const_u32(&mut self, value: u32) -> Word {
        let ty = self.type_uint(32);
        self.global(Op::Constant, Some(ty), vec![Operand::LiteralBit32(value)])
    }

    /// A struct with one runtime array of `element`, `stride` bytes apart.
    pub(crate) fn array_block(&mut self, element: Word, stride: u32) -> Word {
        if let Some(&id) = self.blocks.get(&element) {
            return id;
        }
        let block = self.new_block(element, stride);
        self.blocks.insert(element, block);
        block
    }

    /// A block of elements that nobody writes.
    pub(crate) fn unwritten_block(&mut self, element: Word, stride: u32) -> Word {
        if let Some(&id) = self.unwritten_blocks.get(&element) {
            return id;
        }
        let block = self.new_block(element, stride);
        self.forbid_writes(block);
        self.unwritten_blocks.insert(element, block);
        block
    }

    fn new_block(&mut self, element: Word, stride: u32) -> Word {
        let array = self.fresh();
        let block = self.fresh();
        let types = &mut self.module.types_global_values;
        types.push(Instruction::new(Op::TypeRuntimeArray, None, Some(array), vec![Operand::IdRef(element)]));
        types.push(Instruction::new(Op::TypeStruct, None, Some(block), vec![Operand::IdRef(array)]));
        self.decorate(array, Decoration::ArrayStride, vec![Operand::LiteralBit32(stride)]);
        self.decorate(block, Decoration::Block, vec![]);
        self.module.annotations.push(Instruction::new(
            Op::MemberDecorate,
            None,
            None,
            vec![
                Operand::IdRef(block),
                Operand::LiteralBit32(0),
                Operand::Decoration(Decoration::Offset),
                Operand::LiteralBit32(0),
            ],
        ));
        block
    }

    fn forbid_writes(&mut self, block: Word) {
        let operands =
            vec![Operand::IdRef(block), Operand::LiteralBit32(0), Operand::Decoration(Decoration::NonWritable)];
        self.module.annotations.push(Instruction::new(Op::MemberDecorate, None, None, operands));
    }

    /// Lets loads of `element`, `stride` bytes apart, count on nobody writing to where they load from.
    pub(crate) fn declare_read_only(&mut self, element: Word, stride: u32) {
        let block = self.array_block(element, stride);
        self.forbid_writes(block);
    }

    /// An array type of a constant length.
    pub(crate) fn type_array(&mut self, element: Word, length: u32) -> Word {
        let (length, array) = (self.const_u32(length), self.fresh());
        let elements = vec![Operand::IdRef(element), Operand::IdRef(length)];
        self.module.types_global_values.push(Instruction::new(Op::TypeArray, None, Some(array), elements));
        array
    }

    /// Declares the array `variable`, an id that code uses already, of `length` elements that the workgroup shares.
    pub(crate) fn shared_array(&mut self, variable: Word, element: Word, length: u32) {
        let array = self.type_array(element, length);
        let pointer = self.type_pointer(StorageClass::Workgroup, array);
        let class = vec![Operand::StorageClass(StorageClass::Workgroup)];
        self.module.types_global_values.push(Instruction::new(Op::Variable, Some(pointer), Some(variable), class));
        for entry in &mut self.module.entry_points {
            entry.operands.push(Operand::IdRef(variable));
        }
    }

    /// Declares a variable that each invocation has for itself, in all functions.
    pub fn private_variable(&mut self, ty: Word) -> Word {
        let (pointer, variable) = (self.type_pointer(StorageClass::Private, ty), self.fresh());
        let class = vec![Operand::StorageClass(StorageClass::Private)];
        self.module.types_global_values.push(Instruction::new(Op::Variable, Some(pointer), Some(variable), class));
        for entry in &mut self.module.entry_points {
            entry.operands.push(Operand::IdRef(variable));
        }
        variable
    }

    /// Sets the invocations of a workgroup.
    pub(crate) fn set_local_size(&mut self, size: u32) {
        // A constant with this decoration, as templates have one, rules over the execution mode.
        let builtin = Operand::BuiltIn(BuiltIn::WorkgroupSize);
        self.module.annotations.retain(|annotation| annotation.operands.get(2) != Some(&builtin));
        for mode in &mut self.module.execution_modes {
            if mode.operands.get(1) == Some(&Operand::ExecutionMode(ExecutionMode::LocalSize)) {
                mode.operands.truncate(2);
                mode.operands.extend([size, 1, 1].map(Operand::LiteralBit32));
            }
        }
    }

    pub(super) fn decorate(&mut self, id: Word, decoration: Decoration, extra: Vec<Operand>) {
        let mut operands = vec![Operand::IdRef(id), Operand::Decoration(decoration)];
        operands.extend(extra);
        self.module.annotations.push(Instruction::new(Op::Decorate, None, None, operands));
    }

    /// Whether the library has the function.
    pub fn has(&self, name: &str) -> bool {
        self.library.find(name).is_some()
    }

    /// Brings a library function and its callees into the module.
    pub fn import(&mut self, name: &str) -> Result<(Word, Signature)> {
        let function = self.library.find(name).ok_or_else(|| Error::Unsupported {
            op: name.to_string(),
            dtype: None,
            needs: "a function of this name in the scalar library".to_string(),
        })?;
        self.import_function(function)
    }

    fn import_function(&mut self, function: FunctionRef) -> Result<(Word, Signature)> {
        let modes = match self.bfloat16 {
            true => FloatModes { halves: false, half_round_trips: false, ..self.modes },
            false => self.modes,
        };
        let function = self.library.twin(function, modes);
        if let Some(known) = self.imported.get(&function) {
            return Ok(known.clone());
        }
        let library = self.library;
        let source = library.modules.get(function.module).ok_or_else(|| self.bad("unknown library module"))?;
        let body = source
            .functions
            .get(&function.id)
            .and_then(|&i| source.module.functions.get(i))
            .ok_or_else(|| self.bad("unknown library function"))?;

        // All locals first: blocks may name ids that come later.
        let mut local: HashMap<Word, Word> = HashMap::new();
        let new_function = self.fresh();
        local.insert(function.id, new_function);
        for inst in body.all_inst_iter() {
            if let Some(id) = inst.result_id
                && id != function.id
            {
                local.insert(id, self.fresh());
            }
        }
        let mut copy = Function::default();
        let result_and_type = body.def.as_ref().ok_or_else(|| self.bad("function without definition"))?;
        copy.def = Some(self.map_instruction(function.module, &local, result_and_type)?);
        for parameter in &body.parameters {
            copy.parameters.push(self.map_instruction(function.module, &local, parameter)?);
        }
        for block in &body.blocks {
            let mut new_block = Block::default();
            if let Some(label) = &block.label {
                new_block.label = Some(self.map_instruction(function.module, &local, label)?);
            }
            for inst in &block.instructions {
                if matches!(inst.class.opcode, Op::Line | Op::NoLine) {
                    continue;
                }
                new_block.instructions.push(self.map_instruction(function.module, &local, inst)?);
            }
            copy.blocks.push(new_block);
        }
        copy.end = body.end.clone();
        // In a fixed order: caches of compiled kernels go by the module's words.
        let mut renamed: Vec<(Word, Word)> = local.iter().map(|(&old, &new)| (old, new)).collect();
        renamed.sort_unstable_by_key(|&(_, new)| new);
        for (old, new) in &renamed {
            for decoration in source.decorations.get(old).into_iter().flatten() {
                let mut decoration = decoration.clone();
                if let Some(Operand::IdRef(target)) = decoration.operands.first_mut() {
                    *target = *new;
                }
                self.module.annotations.push(decoration);
            }
        }
        let signature = Signature {
            result: copy.def.as_ref().and_then(|d| d.result_type).unwrap_or_default(),
            parameters: copy.parameters.iter().filter_map(|p| p.result_type).collect(),
        };
        self.module.functions.push(copy);
        self.imported.insert(function, (new_function, signature.clone()));
        Ok((new_function, signature))
    }

    fn map_instruction(
        &mut self,
        module: usize,
        local: &HashMap<Word, Word>,
        inst: &Instruction,
    ) -> Result<Instruction> {
        let mut copy = inst.clone();
        if let Some(ty) = inst.result_type {
            copy.result_type = Some(self.map_id(module, local, ty)?);
        }
        if let Some(id) = inst.result_id {
            copy.result_id = Some(self.map_id(module, local, id)?);
        }
        for operand in &mut copy.operands {
            if let Some(id) = operand.id_ref_any_mut() {
                *id = self.map_id(module, local, *id)?;
            }
        }
        Ok(copy)
    }

    fn map_id(&mut self, module: usize, local: &HashMap<Word, Word>, id: Word) -> Result<Word> {
        if let Some(&new) = local.get(&id) {
            return Ok(new);
        }
        if let Some(&new) = self.imported_globals.get(&(module, id)) {
            return Ok(new);
        }
        let library = self.library;
        let source = library.modules.get(module).ok_or_else(|| self.bad("unknown library module"))?;
        if source.functions.contains_key(&id) {
            return Ok(self.import_function(FunctionRef { module, id })?.0);
        }
        let inst = match source.globals.get(&id) {
            Some(&i) => &source.module.types_global_values[i],
            None => source
                .module
                .ext_inst_imports
                .iter()
                .find(|i| i.result_id == Some(id))
                .ok_or_else(|| self.bad(format!("library id {id} is not defined")))?,
        };
        if inst.class.opcode == Op::Variable {
            return Err(self.bad("library functions may not use global variables"));
        }
        let mapped = self.map_instruction_without_id(module, local, inst)?;
        let new = self.global(mapped.class.opcode, mapped.result_type, mapped.operands);
        self.imported_globals.insert((module, id), new);
        Ok(new)
    }

    fn map_instruction_without_id(
        &mut self,
        module: usize,
        local: &HashMap<Word, Word>,
        inst: &Instruction,
    ) -> Result<Instruction> {
        self.map_instruction(module, local, &without_id(inst))
    }

    fn slot_index(&self, name: &str) -> Option<usize> {
        let id = self.module.debug_names.iter().find_map(|inst| match inst.operands.as_slice() {
            [Operand::IdRef(id), Operand::LiteralString(text)] if text.split('(').next() == Some(name) => Some(*id),
            _ => None,
        })?;
        self.module.functions.iter().position(|f| f.def.as_ref().and_then(|d| d.result_id) == Some(id))
    }

    /// Whether the template has the slot.
    pub fn has_slot(&self, name: &str) -> bool {
        self.slot_index(name).is_some()
    }

    /// A function of the template.
    fn own(&self, name: &str) -> Result<(Word, Word)> {
        let def = self.slot_index(name).and_then(|i| self.module.functions.get(i)).and_then(|f| f.def.as_ref());
        let found = def.and_then(|def| def.result_id.zip(def.result_type));
        found.ok_or_else(|| self.bad(format!("no function {name}")))
    }

    /// Gives the structure that a function of the template returns these members, of types that the template declares
    /// before it; answers its type. No code of the template but bodies of slots may name its members.
    pub fn set_members(&mut self, name: &str, members: &[Word]) -> Result<Word> {
        let (_, ty) = self.own(name)?;
        self.module.debug_names.retain(|inst| inst.operands.first() != Some(&Operand::IdRef(ty)));
        let types = &mut self.module.types_global_values;
        types.retain(|inst| inst.result_type != Some(ty));
        let made = types.iter_mut().find(|inst| inst.result_id == Some(ty) && inst.class.opcode == Op::TypeStruct);
        match made {
            Some(made) => made.operands = members.iter().map(|&member| Operand::IdRef(member)).collect(),
            None => return Err(self.bad(format!("{name} gives no structure"))),
        }
        Ok(ty)
    }

    /// Replaces a slot's body by what `emit` writes. `emit` gets the ids of the slot's parameters and returns the
    /// id of the result, or `None` for a slot without one.
    pub fn define(
        &mut self,
        name: &str,
        emit: impl FnOnce(&mut Code<'_, 'l>, &[Word]) -> Result<Option<Word>>,
    ) -> Result<()> {
        let index = self.slot_index(name).ok_or_else(|| self.bad(format!("no slot {name}")))?;
        let function = &mut self.module.functions[index];
        let parameters: Vec<Word> = function.parameters.iter().filter_map(|p| p.result_id).collect();
        let removed: HashSet<Word> = function
            .blocks
            .drain(..)
            .flat_map(|b| b.label.into_iter().chain(b.instructions))
            .filter_map(|i| i.result_id)
            .collect();
        let gone =
            |inst: &Instruction| matches!(inst.operands.first(), Some(Operand::IdRef(id)) if removed.contains(id));
        self.module.annotations.retain(|inst| !gone(inst));
        self.module.debug_names.retain(|inst| !gone(inst));

        let mut code = Code {
            linker: self,
            instructions: vec![],
            variables: vec![],
            params: HashMap::new(),
            bases: HashMap::new(),
            narrowed: HashMap::new(),
            reciprocals: HashMap::new(),
            shares_doubts: false,
            is_of_normal: false,
            known: HashMap::new(),
            assumes: false,
            is_at_most_one: false,
            rare: None,
            doubts: None,
            settles: false,
        };
        let result = emit(&mut code, &parameters)?;
        let mut instructions = code.variables;
        instructions.append(&mut code.instructions);
        instructions.push(match result {
            Some(id) => Instruction::new(Op::ReturnValue, None, None, vec![Operand::IdRef(id)]),
            None => Instruction::new(Op::Return, None, None, vec![]),
        });
        let label = self.fresh();
        self.module.functions[index].blocks = blocks(label, instructions);
        Ok(())
    }
}

/// The label of a block.
pub fn label_of(id: Word) -> Instruction {
    Instruction::new(Op::Label, None, Some(id), vec![])
}

/// A stream of instructions as blocks, the first of which has this label.
pub(crate) fn blocks(label: Word, stream: Vec<Instruction>) -> Vec<Block> {
    let mut blocks = vec![];
    let mut block = Block { label: Some(label_of(label)), instructions: vec![] };
    for inst in stream {
        if inst.class.opcode == Op::Label {
            blocks.push(std::mem::replace(&mut block, Block { label: Some(inst), instructions: vec![] }));
        } else {
            block.instructions.push(inst);
        }
    }
    blocks.push(block);
    blocks
}

fn without_id(inst: &Instruction) -> Instruction {
    let mut copy = inst.clone();
    copy.result_id = None;
    copy
}
