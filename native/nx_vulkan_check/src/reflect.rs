//! What a compute shader needs and how it is called.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nx_vulkan_ir::{Error, Result};
use rspirv::dr::Operand;
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, ExecutionMode, ExecutionModel, MemoryModel, Op, StorageClass,
};

use super::check;
use super::parse::{self, Module};
use super::parts::{Ids, ids, literal_string};
use super::types::{Type, Types, UNBOUND};

/// A storage buffer of descriptor set 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// Its number in set 0.
    pub binding: u32,
    /// The shader is declared never to write through it.
    pub readonly: bool,
    /// Distance of the elements of the array that ends the block; none where there is no such array.
    pub stride_bytes: Option<u32>,
}

/// The interface and the needs of a compute shader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reflection {
    /// The name of the entry point.
    pub entry_point: String,
    /// With spec constants at their defaults.
    pub local_size: [u32; 3],
    /// Sorted by binding number, each once.
    pub bindings: Vec<Binding>,
    /// Size of the push constant block from offset 0, a multiple of 4; 0 where there is none.
    pub push_bytes: u32,
    /// Ids of the specialization constants, ascending.
    pub spec_ids: Vec<u32>,
    /// Declared capabilities in file order.
    pub capabilities: Vec<Capability>,
    /// Workgroup memory with spec constants at their defaults.
    pub shared_bytes: u64,
    /// (major, minor) of the SPIR-V version.
    pub version: (u32, u32),
}

impl Reflection {
    /// Reads and checks a module; `path` only names it in errors.
    ///
    /// # Errors
    /// `BadShader` with the reason.
    pub fn of(bytes: &[u8], path: &str) -> Result<Reflection> {
        reflect(bytes).map_err(|reason| Error::BadShader { path: path.to_owned(), reason })
    }

    /// Does the shader compute in f64?
    pub fn declares_float64(&self) -> bool {
        self.capabilities.contains(&Capability::Float64)
    }
}

fn reflect(bytes: &[u8]) -> Result<Reflection, String> {
    let module = parse::parse(bytes)?;
    let ids = ids(&module)?;
    let capabilities = capabilities(&module)?;
    let entry = entry_point(&module)?;
    extensions(&module)?;
    instructions_allowed(&module, &capabilities)?;
    let types = Types::of(&module)?;
    check::check(&module, &types, &ids)?;
    entry_function(&module, &types, &ids, &entry)?;
    let reader = Reader { module: &module, types: &types, ids: &ids };
    Ok(Reflection {
        local_size: reader.local_size(entry.function)?,
        entry_point: entry.name,
        bindings: reader.bindings()?,
        push_bytes: reader.push_bytes()?,
        spec_ids: reader.spec_ids(),
        shared_bytes: reader.shared_bytes(),
        capabilities,
        version: (module.version >> 16 & 0xff, module.version >> 8 & 0xff),
    })
}

struct EntryPoint {
    function: u32,
    name: String,
    interface: Vec<u32>,
}

fn entry_point(module: &Module) -> Result<EntryPoint, String> {
    let mut found = Vec::new();
    for instruction in module.instructions.iter().filter(|i| i.op == Op::EntryPoint) {
        let model = ExecutionModel::from_u32(module.operand(instruction, 0));
        if model != Some(ExecutionModel::GLCompute) {
            let model = model.map_or("unknown".into(), |model| format!("{model:?}"));
            return Err(format!("a {model} shader, not a compute shader"));
        }
        found.push(instruction);
    }
    let &[instruction] = found.as_slice() else {
        return Err(format!("{} entry points, not one", found.len()));
    };
    let ids = module.ids(instruction);
    Ok(EntryPoint {
        function: ids.first().copied().unwrap_or(0),
        name: literal_string(module.operands(instruction).get(2..).unwrap_or(&[])),
        interface: ids.get(1..).unwrap_or(&[]).to_vec(),
    })
}

fn entry_function(module: &Module, types: &Types, ids: &Ids, entry: &EntryPoint) -> Result<(), String> {
    let function = ids.instruction(module, entry.function).filter(|i| i.op == Op::Function);
    let function = function.ok_or("the entry point is no function")?;
    let is_plain = match types.get(module.operand(function, 1)) {
        Some(Type::Function { result, parameters }) => types.get(*result) == Some(&Type::Void) && parameters.is_empty(),
        _ => false,
    };
    if !is_plain {
        return Err("the entry point takes parameters or returns a value".into());
    }
    let is_call = |i: &&parse::Instruction| i.op == Op::FunctionCall && module.operand(i, 0) == entry.function;
    if module.instructions.iter().any(|i| is_call(&i)) {
        return Err("the entry point is called".into());
    }
    let mut seen = BTreeSet::new();
    let mut inputs = BTreeSet::new();
    for &id in &entry.interface {
        let is_global = ids.definition(id).is_some_and(|definition| definition.function.is_none());
        if ids.instruction(module, id).is_none_or(|i| i.op != Op::Variable) || !is_global {
            return Err(format!("{id} in the entry point's interface is no global variable"));
        }
        let input = types.decorations(id).and_then(|decorations| decorations.builtin);
        if !seen.insert(id) || input.is_some_and(|input| !inputs.insert(input)) {
            return Err(format!("{id} is twice in the entry point's interface"));
        }
    }
    Ok(())
}

fn capabilities(module: &Module) -> Result<Vec<Capability>, String> {
    let mut capabilities = Vec::new();
    for instruction in module.instructions.iter().filter(|i| i.op == Op::Capability) {
        let word = module.operand(instruction, 0);
        let capability = Capability::from_u32(word).ok_or_else(|| format!("unknown capability {word}"))?;
        if !capabilities.contains(&capability) {
            capabilities.push(capability);
        }
    }
    Ok(capabilities)
}

/// Instruction sets and memory model; and extended instructions only of sets that the checks know.
fn extensions(module: &Module) -> Result<(), String> {
    for instruction in &module.instructions {
        let operands = module.operands(instruction);
        match instruction.op {
            Op::ExtInstImport => {
                let name = literal_string(operands);
                if name != "GLSL.std.450" && !name.starts_with("NonSemantic.") {
                    return Err(format!("instruction set {name}"));
                }
            }
            Op::MemoryModel => {
                let addressing = AddressingModel::from_u32(module.operand(instruction, 0));
                let memory = MemoryModel::from_u32(module.operand(instruction, 1));
                let known =
                    matches!(addressing, Some(AddressingModel::Logical | AddressingModel::PhysicalStorageBuffer64))
                        && matches!(memory, Some(MemoryModel::GLSL450 | MemoryModel::Vulkan));
                if !known {
                    return Err(format!("memory model {addressing:?} {memory:?}, which Vulkan has not"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Every instruction's capability, or its extension, is declared.
fn instructions_allowed(module: &Module, declared: &[Capability]) -> Result<(), String> {
    let mut available: BTreeSet<Capability> = BTreeSet::new();
    let mut pending = declared.to_vec();
    while let Some(capability) = pending.pop() {
        if available.insert(capability) {
            pending.extend(Operand::Capability(capability).required_capabilities());
        }
    }
    let extensions: BTreeSet<String> = module
        .instructions
        .iter()
        .filter(|i| i.op == Op::Extension)
        .map(|i| literal_string(module.operands(i)))
        .collect();
    for instruction in &module.instructions {
        let of_width = capabilities_of_width(instruction.op, module.operand(instruction, 0));
        if !of_width.is_empty() && !of_width.iter().any(|c| available.contains(c)) {
            return Err(format!(
                "word {}: Op{} of {} bits needs one of the capabilities {of_width:?}",
                instruction.at_word,
                instruction.name,
                module.operand(instruction, 0)
            ));
        }
        let Some(grammar) = parse::grammar_of(instruction.op as u32) else {
            continue;
        };
        let allowed = grammar.capabilities.is_empty()
            || grammar.capabilities.iter().any(|c| available.contains(c))
            || grammar.extensions.iter().any(|e| extensions.contains(*e));
        if !allowed {
            return Err(format!(
                "word {}: Op{} needs capability {:?}",
                instruction.at_word, grammar.opname, grammar.capabilities
            ));
        }
    }
    Ok(())
}

/// The capabilities of which a type of numbers of so many bits needs one; none where it needs none.
fn capabilities_of_width(op: Op, bits: u32) -> &'static [Capability] {
    use Capability as C;
    match (op, bits) {
        (Op::TypeFloat, 64) => &[C::Float64],
        (Op::TypeFloat, 16) => &[
            C::Float16,
            C::Float16Buffer,
            C::StorageBuffer16BitAccess,
            C::UniformAndStorageBuffer16BitAccess,
            C::StoragePushConstant16,
            C::StorageInputOutput16,
        ],
        (Op::TypeInt, 64) => &[C::Int64],
        (Op::TypeInt, 16) => &[
            C::Int16,
            C::StorageBuffer16BitAccess,
            C::UniformAndStorageBuffer16BitAccess,
            C::StoragePushConstant16,
            C::StorageInputOutput16,
        ],
        (Op::TypeInt, 8) => {
            &[C::Int8, C::StorageBuffer8BitAccess, C::UniformAndStorageBuffer8BitAccess, C::StoragePushConstant8]
        }
        _ => &[],
    }
}

struct Reader<'m> {
    module: &'m Module,
    types: &'m Types,
    ids: &'m Ids,
}

impl Reader<'_> {
    /// Global variables: id, storage class, pointee.
    fn variables(&self) -> impl Iterator<Item = (u32, StorageClass, u32)> {
        let variables = self.module.instructions.iter().filter(|i| i.op == Op::Variable);
        variables.filter_map(|i| {
            let (class, pointee) = self.types.pointee(i.result_type?)?;
            Some((i.result?, class, pointee))
        })
    }

    fn local_size(&self, entry: u32) -> Result<[u32; 3], String> {
        // A constant decorated WorkgroupSize rules over the execution mode.
        for (id, decorations) in self.types.decorated() {
            if decorations.builtin == Some(BuiltIn::WorkgroupSize) {
                let constant = self.ids.instruction(self.module, id).ok_or("WorkgroupSize of nothing")?;
                let sizes: Vec<u32> = self.module.ids(constant).to_vec();
                return self.sizes_of(&sizes);
            }
        }
        for instruction in &self.module.instructions {
            let &[function, mode, ref values @ ..] = self.module.operands(instruction) else {
                continue;
            };
            if function != entry {
                continue;
            }
            let mode = ExecutionMode::from_u32(mode);
            match (instruction.op, mode, values) {
                (Op::ExecutionMode, Some(ExecutionMode::LocalSize), &[x, y, z]) => return positive([x, y, z]),
                (Op::ExecutionModeId, Some(ExecutionMode::LocalSizeId), values) => return self.sizes_of(values),
                _ => {}
            }
        }
        Err("no local size".into())
    }

    fn sizes_of(&self, ids: &[u32]) -> Result<[u32; 3], String> {
        let &[x, y, z] = ids else {
            return Err("a local size that has not three parts".into());
        };
        let size = |id| {
            let value = self.types.integer(id).and_then(|value| u32::try_from(value).ok());
            value.ok_or_else(|| format!("the local size {id} is no constant"))
        };
        positive([size(x)?, size(y)?, size(z)?])
    }

    fn bindings(&self) -> Result<Vec<Binding>, String> {
        let mut found: BTreeMap<u32, (bool, Option<u32>)> = BTreeMap::new();
        for (id, class, pointee) in self.variables() {
            let block = self.types.decorations(pointee);
            let is_old_style = block.is_some_and(|d| d.buffer_block);
            match class {
                StorageClass::StorageBuffer => {}
                StorageClass::Uniform if is_old_style => {}
                StorageClass::Uniform | StorageClass::UniformConstant => {
                    return Err(UNBOUND.into());
                }
                _ => continue,
            }
            let Some(Type::Struct { members }) = self.types.get(pointee) else {
                return Err(format!("storage buffer {id} is no struct; arrays of buffers can't be bound"));
            };
            let decorations = self.types.decorations(id);
            let set = decorations.and_then(|d| d.set);
            let binding = decorations.and_then(|d| d.binding);
            let (Some(set), Some(binding)) = (set, binding) else {
                return Err(format!("storage buffer {id} has no set or no binding"));
            };
            if set != 0 {
                return Err(format!("binding {binding} is in set {set}; only set 0 can be bound"));
            }
            let member_readonly = |index: usize| {
                let layout = u32::try_from(index).ok().and_then(|index| block?.members.get(&index));
                layout.is_some_and(|layout| layout.readonly)
            };
            let readonly = decorations.is_some_and(|d| d.readonly)
                || (!members.is_empty() && (0..members.len()).all(member_readonly));
            let array = members.last().filter(|id| matches!(self.types.get(**id), Some(Type::RuntimeArray { .. })));
            let stride = array.and_then(|id| self.types.decorations(*id)).and_then(|d| d.array_stride);
            found.entry(binding).and_modify(|(all, _)| *all &= readonly).or_insert((readonly, stride));
        }
        let bindings = found.into_iter();
        Ok(bindings.map(|(binding, (readonly, stride_bytes))| Binding { binding, readonly, stride_bytes }).collect())
    }

    fn push_bytes(&self) -> Result<u32, String> {
        let mut end = 0;
        for (_, class, pointee) in self.variables() {
            if class == StorageClass::PushConstant {
                let sizes = self.explicit_sizes()?;
                end = end.max(*sizes.get(&pointee).ok_or("push constants of unknown size")?);
            }
        }
        u32::try_from(end.next_multiple_of(4)).map_err(|_| format!("{end} bytes of push constants"))
    }

    /// Sizes by the Offset, ArrayStride and MatrixStride decorations, for all types that have one.
    fn explicit_sizes(&self) -> Result<HashMap<u32, u64>, String> {
        let mut sizes: HashMap<u32, u64> = self.types.addresses().map(|id| (id, 8)).collect();
        for instruction in &self.module.instructions {
            let Some(id) = instruction.result else { continue };
            let size = match self.types.get(id) {
                Some(Type::Int { bits, .. } | Type::Float { bits }) => Some(u64::from(bits / 8)),
                Some(Type::Vector { component, count }) => sizes.get(component).map(|s| s * u64::from(*count)),
                Some(Type::Array { element, length }) => {
                    let stride = self.types.decorations(id).and_then(|d| d.array_stride);
                    let stride = stride.map(u64::from).or(sizes.get(element).copied());
                    stride.zip(*length).map(|(stride, length)| stride.saturating_mul(length))
                }
                Some(Type::Struct { members }) => self.struct_size(id, members, &sizes)?,
                _ => None,
            };
            if let Some(size) = size {
                sizes.insert(id, size);
            }
        }
        Ok(sizes)
    }

    /// None when a member has no offset or no size: then the struct is no interface block.
    fn struct_size(&self, id: u32, members: &[u32], sizes: &HashMap<u32, u64>) -> Result<Option<u64>, String> {
        let mut end = 0u64;
        for (index, member) in members.iter().enumerate() {
            let index = u32::try_from(index).map_err(|_| "too many members")?;
            let layout = self.types.decorations(id).and_then(|d| d.members.get(&index));
            let Some(offset) = layout.and_then(|layout| layout.offset) else {
                return Ok(None);
            };
            let size = match (self.types.get(*member), layout) {
                (Some(Type::Matrix { column, count }), Some(layout)) => {
                    let rows = match self.types.get(*column) {
                        Some(Type::Vector { count, .. }) => *count,
                        _ => 1,
                    };
                    let stride = u64::from(layout.matrix_stride.unwrap_or(16));
                    Some(stride * u64::from(if layout.row_major { rows } else { *count }))
                }
                _ => sizes.get(member).copied(),
            };
            let Some(size) = size else {
                return Ok(None);
            };
            end = end.max(u64::from(offset).saturating_add(size));
        }
        Ok(Some(end))
    }

    fn spec_ids(&self) -> Vec<u32> {
        let ids: BTreeSet<u32> = self.types.decorated().filter_map(|(_, d)| d.spec_id).collect();
        ids.into_iter().collect()
    }

    /// Workgroup variables laid out one after the other, each at its natural alignment.
    fn shared_bytes(&self) -> u64 {
        let sizes = self.natural_sizes();
        let mut end = 0u64;
        for (_, class, pointee) in self.variables() {
            if class == StorageClass::Workgroup {
                let (size, align) = sizes.get(&pointee).copied().unwrap_or((0, 1));
                end = end.next_multiple_of(align).saturating_add(size);
            }
        }
        end
    }

    /// (size, alignment) of types as workgroup memory holds them, by the rules of std430.
    fn natural_sizes(&self) -> HashMap<u32, (u64, u64)> {
        let mut sizes: HashMap<u32, (u64, u64)> = self.types.addresses().map(|id| (id, (8, 8))).collect();
        for instruction in &self.module.instructions {
            let Some(id) = instruction.result else { continue };
            let size = match self.types.get(id) {
                Some(Type::Bool) => Some((4, 4)),
                Some(Type::Int { bits, .. } | Type::Float { bits }) => Some((u64::from(bits / 8), u64::from(bits / 8))),
                Some(Type::Vector { component, count }) => sizes
                    .get(component)
                    .map(|(size, _)| (size * u64::from(*count), size * if *count == 2 { 2 } else { 4 })),
                Some(Type::Matrix { column, count }) => repeat(&sizes, column, u64::from(*count)),
                Some(Type::Array { element, length: Some(length) }) => repeat(&sizes, element, *length),
                Some(Type::Struct { members }) => {
                    let parts: Option<Vec<(u64, u64)>> = members.iter().map(|m| sizes.get(m).copied()).collect();
                    parts.map(|parts| {
                        let align = parts.iter().map(|(_, align)| *align).max().unwrap_or(1);
                        let end = parts.iter().fold(0u64, |end, (size, align)| {
                            end.checked_next_multiple_of(*align).unwrap_or(u64::MAX).saturating_add(*size)
                        });
                        (end.checked_next_multiple_of(align).unwrap_or(u64::MAX), align)
                    })
                }
                _ => None,
            };
            if let Some(size) = size {
                sizes.insert(id, size);
            }
        }
        sizes
    }
}

fn repeat(sizes: &HashMap<u32, (u64, u64)>, part: &u32, count: u64) -> Option<(u64, u64)> {
    let (size, align) = sizes.get(part).copied()?;
    let stride = size.checked_next_multiple_of(align).unwrap_or(u64::MAX);
    Some((stride.saturating_mul(count), align))
}

fn positive(size: [u32; 3]) -> Result<[u32; 3], String> {
    if size.contains(&0) {
        return Err(format!("local size {size:?}"));
    }
    Ok(size)
}
