//! Instructions that reach other invocations: barriers, atomics, subgroup operations and cooperative matrices.

use rspirv::spirv::{CooperativeMatrixLayout, GroupOperation, MemoryModel, MemorySemantics, Op, Scope, StorageClass};

use super::operands::{Checker, require};
use super::parts::Checked;
use super::rules::{BOOL, ScalarKind, Shape};
use super::types::Type;

const WORD: Shape = Shape { kind: ScalarKind::Unsigned, bits: 32, count: 1 };
const BALLOT: Shape = Shape { kind: ScalarKind::Unsigned, bits: 32, count: 4 };

impl Checker<'_> {
    /// None for other instructions. `result` is 0 where there is none.
    pub fn of_other_invocations(&self, op: Op, result: u32, operands: &[u32]) -> Option<Checked> {
        let name = format!("{op:?}");
        if name.starts_with("Atomic") {
            Some(self.atomic(op, result, operands))
        } else if name.starts_with("GroupNonUniform") {
            Some(self.subgroup(op, result, operands))
        } else if name.starts_with("CooperativeMatrix") {
            Some(self.matrix(op, result, operands))
        } else {
            match op {
                Op::ControlBarrier => Some(self.control_barrier(operands)),
                Op::MemoryBarrier => Some(self.memory_barrier(operands)),
                _ => None,
            }
        }
    }

    fn constant(&self, id: u32) -> Checked<u32> {
        let shape = self.scalar(id, ScalarKind::Int)?;
        let is_plain = self.defining(id).is_some_and(|i| i.op == Op::Constant);
        let value = self.types.integer(id).filter(|_| is_plain && shape.bits == 32);
        value.and_then(|value| u32::try_from(value).ok()).ok_or_else(|| format!("{id} is no 32-bit constant"))
    }

    fn scope(&self, id: u32) -> Checked<Scope> {
        Scope::from_u32(self.constant(id)?).ok_or_else(|| format!("{id} is no scope"))
    }

    pub fn memory_scope(&self, id: u32) -> Checked {
        let scope = self.scope(id)?;
        let of_model = scope == Scope::QueueFamily && self.memory_model() == Some(MemoryModel::Vulkan);
        let known = matches!(scope, Scope::Device | Scope::Workgroup | Scope::Subgroup | Scope::Invocation) || of_model;
        require(known, || format!("memory scope {scope:?}"))
    }

    fn memory_model(&self) -> Option<MemoryModel> {
        let model = self.module.instructions.iter().find(|i| i.op == Op::MemoryModel)?;
        MemoryModel::from_u32(self.module.operand(model, 1))
    }

    fn semantics(&self, id: u32) -> Checked<MemorySemantics> {
        let word = self.constant(id)?;
        let semantics = MemorySemantics::from_bits(word).ok_or_else(|| format!("{word:#x} is no memory semantics"))?;
        let orders = MemorySemantics::ACQUIRE | MemorySemantics::RELEASE | MemorySemantics::ACQUIRE_RELEASE;
        let memories = MemorySemantics::UNIFORM_MEMORY
            | MemorySemantics::WORKGROUP_MEMORY
            | MemorySemantics::SUBGROUP_MEMORY
            | MemorySemantics::ATOMIC_COUNTER_MEMORY
            | MemorySemantics::CROSS_WORKGROUP_MEMORY
            | MemorySemantics::OUTPUT_MEMORY
            | MemorySemantics::IMAGE_MEMORY;
        let visibility = MemorySemantics::MAKE_AVAILABLE | MemorySemantics::MAKE_VISIBLE;
        let is_vulkan = self.memory_model() == Some(MemoryModel::Vulkan);
        let known = orders | memories | if is_vulkan { visibility } else { MemorySemantics::empty() };
        require(known.contains(semantics), || format!("memory semantics {semantics:?}"))?;
        let order = semantics & orders;
        require(order.bits().count_ones() <= 1, || format!("several memory orders: {semantics:?}"))?;
        let makes = |bit, with: MemorySemantics| !semantics.contains(bit) || order.intersects(with);
        let fits = makes(MemorySemantics::MAKE_AVAILABLE, MemorySemantics::RELEASE | MemorySemantics::ACQUIRE_RELEASE)
            && makes(MemorySemantics::MAKE_VISIBLE, MemorySemantics::ACQUIRE | MemorySemantics::ACQUIRE_RELEASE);
        require(fits, || format!("memory semantics {semantics:?}"))?;
        Ok(semantics)
    }

    /// An order goes with the memory that it orders.
    fn ordered(&self, id: u32) -> Checked<bool> {
        let semantics = self.semantics(id)?;
        let orders = MemorySemantics::ACQUIRE | MemorySemantics::RELEASE | MemorySemantics::ACQUIRE_RELEASE;
        let memories =
            MemorySemantics::UNIFORM_MEMORY | MemorySemantics::WORKGROUP_MEMORY | MemorySemantics::IMAGE_MEMORY;
        let is_ordered = semantics.intersects(orders);
        let fits = if is_ordered { semantics.intersects(memories) } else { semantics.is_empty() };
        require(fits, || format!("an order without memory, or memory without an order: {semantics:?}"))?;
        Ok(is_ordered)
    }

    fn control_barrier(&self, operands: &[u32]) -> Checked {
        let &[execution, memory, semantics] = operands else {
            return Err("operands are missing".into());
        };
        let scope = self.scope(execution)?;
        require(matches!(scope, Scope::Workgroup | Scope::Subgroup), || format!("execution scope {scope:?}"))?;
        self.memory_scope(memory)?;
        self.ordered(semantics).map(|_| ())
    }

    fn memory_barrier(&self, operands: &[u32]) -> Checked {
        let &[memory, semantics] = operands else {
            return Err("operands are missing".into());
        };
        self.memory_scope(memory)?;
        let is_ordered = self.ordered(semantics)?;
        require(is_ordered, || "a memory barrier without an order".into())
    }

    fn atomic(&self, op: Op, result: u32, operands: &[u32]) -> Checked {
        let &[pointer, scope, ref rest @ ..] = operands else {
            return Err("operands are missing".into());
        };
        let (class, pointee) = self.pointee_of(pointer)?;
        let shared = matches!(
            class,
            StorageClass::StorageBuffer
                | StorageClass::Uniform
                | StorageClass::Workgroup
                | StorageClass::PhysicalStorageBuffer
        );
        require(shared, || format!("an atomic in {class:?} memory"))?;
        self.memory_scope(scope)?;
        require(op == Op::AtomicStore || result == pointee, || "the result is not what the pointer points to".into())?;
        let values = match op {
            Op::AtomicCompareExchange => {
                rest[..2].iter().try_for_each(|&id| self.semantics(id).map(|_| ()))?;
                &rest[2..]
            }
            _ => {
                let semantics = self.semantics(rest.first().copied().unwrap_or(0))?;
                let orders = match op {
                    Op::AtomicLoad => MemorySemantics::RELEASE | MemorySemantics::ACQUIRE_RELEASE,
                    Op::AtomicStore => MemorySemantics::ACQUIRE | MemorySemantics::ACQUIRE_RELEASE,
                    _ => MemorySemantics::empty(),
                };
                require(!semantics.intersects(orders), || format!("memory semantics {semantics:?}"))?;
                &rest[1..]
            }
        };
        self.all_of(pointee, values)?;
        let shape = self.shape(pointee)?;
        let fits = match op {
            Op::AtomicLoad | Op::AtomicStore | Op::AtomicExchange => {
                shape.is(ScalarKind::Int) || shape.is(ScalarKind::Float)
            }
            Op::AtomicFAddEXT | Op::AtomicFMinEXT | Op::AtomicFMaxEXT => shape.is(ScalarKind::Float),
            Op::AtomicCompareExchange
            | Op::AtomicIIncrement
            | Op::AtomicIDecrement
            | Op::AtomicIAdd
            | Op::AtomicISub
            | Op::AtomicSMin
            | Op::AtomicUMin
            | Op::AtomicSMax
            | Op::AtomicUMax
            | Op::AtomicAnd
            | Op::AtomicOr
            | Op::AtomicXor => shape.is(ScalarKind::Int),
            _ => return Err("is no atomic of a compute shader".into()),
        };
        let has = |name: &str| self.types.has_capability(name);
        let is_enabled = match (op, shape.bits) {
            (_, 64) if shape.is(ScalarKind::Int) => has("Int64Atomics"),
            (Op::AtomicFAddEXT, 32) => has("AtomicFloat32AddEXT"),
            (Op::AtomicFAddEXT, 64) => has("AtomicFloat64AddEXT"),
            (Op::AtomicFMinEXT | Op::AtomicFMaxEXT, 32) => has("AtomicFloat32MinMaxEXT"),
            (Op::AtomicFMinEXT | Op::AtomicFMaxEXT, 64) => has("AtomicFloat64MinMaxEXT"),
            (_, bits) => bits == 32 || (bits == 64 && shape.is(ScalarKind::Float)),
        };
        require(fits && is_enabled && shape.count == 1, || format!("an atomic of type {pointee}"))
    }

    fn subgroup(&self, op: Op, result: u32, operands: &[u32]) -> Checked {
        let Some((&scope, rest)) = operands.split_first() else {
            return Err("operands are missing".into());
        };
        let scope = self.scope(scope)?;
        require(scope == Scope::Subgroup, || format!("scope {scope:?} of a subgroup operation"))?;
        let shape = self.shape(result)?;
        let is_bool = || require(shape == BOOL, || "the result is no Boolean".into());
        let operand = |index: usize| rest.get(index).copied().unwrap_or(0);
        match op {
            Op::GroupNonUniformElect => is_bool(),
            Op::GroupNonUniformAll | Op::GroupNonUniformAny => {
                is_bool()?;
                self.all_of(result, rest)
            }
            Op::GroupNonUniformAllEqual => {
                is_bool()?;
                self.shape_of(operand(0)).map(|_| ())
            }
            Op::GroupNonUniformBroadcast
            | Op::GroupNonUniformShuffle
            | Op::GroupNonUniformShuffleXor
            | Op::GroupNonUniformShuffleUp
            | Op::GroupNonUniformShuffleDown
            | Op::GroupNonUniformQuadBroadcast => {
                self.all_of(result, &rest[..1])?;
                let lane = self.scalar(operand(1), ScalarKind::Unsigned)?;
                require(lane == WORD, || "the invocation is no 32-bit unsigned integer".into())?;
                let wants_constant = op == Op::GroupNonUniformQuadBroadcast
                    || (op == Op::GroupNonUniformBroadcast && self.module.version < 0x0001_0500);
                require(!wants_constant || self.types.is_constant(operand(1)), || {
                    "the invocation is no constant".into()
                })
            }
            Op::GroupNonUniformBroadcastFirst => self.all_of(result, rest),
            Op::GroupNonUniformQuadSwap => {
                self.all_of(result, &rest[..1])?;
                let direction = self.constant(operand(1))?;
                require(direction < 3, || format!("direction {direction}"))
            }
            Op::GroupNonUniformBallot => {
                require(shape == BALLOT, || "the result is no ballot".into())?;
                self.scalar(operand(0), ScalarKind::Bool).map(|_| ())
            }
            Op::GroupNonUniformInverseBallot => {
                is_bool()?;
                self.ballot(operand(0))
            }
            Op::GroupNonUniformBallotBitExtract => {
                is_bool()?;
                self.ballot(operand(0))?;
                require(self.scalar(operand(1), ScalarKind::Unsigned)? == WORD, || {
                    "the index is no 32-bit integer".into()
                })
            }
            Op::GroupNonUniformBallotFindLSB | Op::GroupNonUniformBallotFindMSB => {
                require(shape == WORD, || "the result is no 32-bit unsigned integer".into())?;
                self.ballot(operand(0))
            }
            Op::GroupNonUniformBallotBitCount => {
                require(shape == WORD, || "the result is no 32-bit unsigned integer".into())?;
                require(operand(0) <= 2, || format!("group operation {}", operand(0)))?;
                self.ballot(operand(1))
            }
            _ => self.reduction(op, result, rest),
        }
    }

    fn ballot(&self, id: u32) -> Checked {
        require(self.shape_of(id)? == BALLOT, || format!("operand {id} is no ballot"))
    }

    fn reduction(&self, op: Op, result: u32, operands: &[u32]) -> Checked {
        let kind = match op {
            Op::GroupNonUniformFAdd | Op::GroupNonUniformFMul | Op::GroupNonUniformFMin | Op::GroupNonUniformFMax => {
                ScalarKind::Float
            }
            Op::GroupNonUniformUMin | Op::GroupNonUniformUMax => ScalarKind::Unsigned,
            Op::GroupNonUniformIAdd
            | Op::GroupNonUniformIMul
            | Op::GroupNonUniformSMin
            | Op::GroupNonUniformSMax
            | Op::GroupNonUniformBitwiseAnd
            | Op::GroupNonUniformBitwiseOr
            | Op::GroupNonUniformBitwiseXor => ScalarKind::Int,
            Op::GroupNonUniformLogicalAnd | Op::GroupNonUniformLogicalOr | Op::GroupNonUniformLogicalXor => {
                ScalarKind::Bool
            }
            _ => return Err("is no subgroup operation of a compute shader".into()),
        };
        let &[operation, value, ref cluster @ ..] = operands else {
            return Err("operands are missing".into());
        };
        self.number(result, kind)?;
        self.all_of(result, &[value])?;
        match (GroupOperation::from_u32(operation), cluster) {
            (Some(GroupOperation::Reduce | GroupOperation::InclusiveScan | GroupOperation::ExclusiveScan), []) => {
                Ok(())
            }
            (Some(GroupOperation::ClusteredReduce), &[size]) => {
                let size = self.constant(size)?;
                let fits = size.is_power_of_two() && self.types.has_capability("GroupNonUniformClustered");
                require(fits, || format!("clusters of {size}"))
            }
            _ => Err(format!("group operation {operation}")),
        }
    }

    fn matrix(&self, op: Op, result: u32, operands: &[u32]) -> Checked {
        let operand = |index: usize| operands.get(index).copied().unwrap_or(0);
        let is_matrix = |id| matches!(self.types.get(id), Some(Type::CooperativeMatrix { .. }));
        let layout = |id: u32| {
            let layout = CooperativeMatrixLayout::from_u32(self.constant(id)?);
            let strided =
                matches!(layout, Some(CooperativeMatrixLayout::RowMajorKHR | CooperativeMatrixLayout::ColumnMajorKHR));
            require(strided, || format!("operand {id} is no row-major or column-major layout"))
        };
        let memory = |id: u32| {
            let (class, pointee) = self.pointee_of(id)?;
            let fits = matches!(
                class,
                StorageClass::StorageBuffer | StorageClass::Workgroup | StorageClass::PhysicalStorageBuffer
            );
            require(fits, || format!("a matrix in {class:?} memory"))?;
            self.shape(pointee).map(|_| ())
        };
        match op {
            Op::CooperativeMatrixLengthKHR => {
                let word = self.shape(result)?;
                require(word == WORD && is_matrix(operand(0)), || "not the 32-bit length of a matrix type".into())
            }
            Op::CooperativeMatrixLoadKHR => {
                require(is_matrix(result), || "the result is no matrix".into())?;
                memory(operand(0))?;
                layout(operand(1))?;
                operands
                    .get(2)
                    .map_or(Err("no stride".into()), |&stride| self.scalar(stride, ScalarKind::Int).map(|_| ()))
            }
            Op::CooperativeMatrixStoreKHR => {
                memory(operand(0))?;
                require(is_matrix(self.type_of(operand(1))?), || "stores no matrix".into())?;
                layout(operand(2))?;
                operands
                    .get(3)
                    .map_or(Err("no stride".into()), |&stride| self.scalar(stride, ScalarKind::Int).map(|_| ()))
            }
            Op::CooperativeMatrixMulAddKHR => self.multiply(result, operands),
            _ => Err("is no matrix operation of a compute shader".into()),
        }
    }

    fn multiply(&self, result: u32, operands: &[u32]) -> Checked {
        let parameters = |type_id: u32| match self.types.get(type_id) {
            // Scope, rows, columns, use.
            Some(Type::CooperativeMatrix { parameters, .. }) => {
                Ok(parameters.map(|id| self.types.integer(id).unwrap_or(u64::MAX)))
            }
            _ => Err(format!("type {type_id} is no matrix")),
        };
        let &[a, b, c, ..] = operands else {
            return Err("operands are missing".into());
        };
        let (a, b) = (parameters(self.type_of(a)?)?, parameters(self.type_of(b)?)?);
        let sum = parameters(result)?;
        self.all_of(result, &[c])?;
        let fits = a[0] == b[0]
            && b[0] == sum[0]
            && (a[1], b[2]) == (sum[1], sum[2])
            && a[2] == b[1]
            && (a[3], b[3], sum[3]) == (0, 1, 2);
        require(fits, || "the matrices do not fit".into())
    }
}
