//! Variables of a function as values: what is stored to them and loaded from them, part by part.

use std::collections::{HashMap, HashSet};

use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Op, Word};

use super::Lowering;
use super::flow::{Flow, Unit, ids, targets};

/// Variables of more parts stay in memory.
const MOST_CELLS: usize = 16;

/// How a variable falls into cells.
#[derive(Debug, Clone)]
enum Shape {
    Cell(Word, usize),
    Parts(Word, Vec<Shape>),
}

/// What an id points to.
#[derive(Debug, Clone)]
struct Pointed {
    variable: Word,
    path: Vec<usize>,
}

/// A variable's cell.
type Cell = (Word, usize);

/// The graph on its way to values.
struct Promotion {
    shapes: HashMap<Word, Shape>,
    places: HashMap<Word, Pointed>,
    types: HashMap<Cell, Word>,
    /// What each node leaves in cells.
    left: Vec<HashMap<Cell, Word>>,
    /// What each node finds in cells, and those that are not worked out.
    found: HashMap<(usize, Cell), Word>,
    open: Vec<(usize, Cell)>,
    same: HashMap<Word, Word>,
}

impl Lowering<'_> {
    /// Makes values of all variables that are only loaded and stored, at constant indices.
    pub(super) fn promote(&mut self, flow: &mut Flow, types: &HashMap<Word, Instruction>) {
        let mut promotion = Promotion {
            shapes: HashMap::new(),
            places: HashMap::new(),
            types: HashMap::new(),
            left: vec![],
            found: HashMap::new(),
            open: vec![],
            same: HashMap::new(),
        };
        promotion.choose(flow, types);
        if promotion.shapes.is_empty() {
            return;
        }
        for at in 0..flow.nodes.len() {
            promotion.left.push(HashMap::new());
            for unit in std::mem::take(&mut flow.nodes[at].units) {
                promotion.rewrite(self, at, unit, &mut flow.nodes[at].units);
            }
        }
        promotion.connect(self, flow);
        flow.variables.retain(|inst| inst.result_id.is_none_or(|id| !promotion.shapes.contains_key(&id)));
        flow.substitute(&promotion.resolved());
    }
}

impl Promotion {
    /// Finds the variables, and the pointers into them.
    fn choose(&mut self, flow: &Flow, types: &HashMap<Word, Instruction>) {
        let mut variables: HashMap<Word, Word> = HashMap::new();
        for inst in &flow.variables {
            let pointee = inst.result_type.and_then(|ty| types.get(&ty)?.operands.get(1)?.id_ref_any());
            if let (Some(id), Some(ty)) = (inst.result_id, pointee) {
                variables.insert(id, ty);
                self.places.insert(id, Pointed { variable: id, path: vec![] });
            }
        }
        let mut kept: HashSet<Word> = HashSet::new();
        let mut split: HashSet<Word> = HashSet::new();
        let number = |id: Word| match types.get(&id)?.operands.first()? {
            Operand::LiteralBit32(number) => Some(*number as usize),
            _ => None,
        };
        // Chains stand behind what they go out from in one order of nodes or another.
        for _ in 0..2 {
            for inst in flow.nodes.iter().flat_map(|node| &node.units).flat_map(|unit| &unit.code) {
                let chain = matches!(inst.class.opcode, Op::AccessChain | Op::InBoundsAccessChain);
                let Some(base) = inst.operands.first().and_then(Operand::id_ref_any).filter(|_| chain) else {
                    continue;
                };
                let (Some(place), Some(id)) = (self.places.get(&base).cloned(), inst.result_id) else { continue };
                let indices: Option<Vec<usize>> =
                    inst.operands.iter().skip(1).map(|index| number(index.id_ref_any()?)).collect();
                let Some(indices) = indices else {
                    kept.insert(place.variable);
                    continue;
                };
                let path: Vec<usize> = place.path.iter().copied().chain(indices).collect();
                let mut ty = variables.get(&place.variable).copied().unwrap_or_default();
                for &index in &path {
                    if types.get(&ty).is_some_and(|inst| inst.class.opcode == Op::TypeVector) {
                        split.insert(place.variable);
                    }
                    ty = part(types, ty, index).unwrap_or_default();
                }
                self.places.insert(id, Pointed { variable: place.variable, path });
            }
        }
        for node in &flow.nodes {
            for inst in node.units.iter().flat_map(|unit| &unit.code).chain(&node.phis).chain([&node.end]) {
                let plain = match inst.class.opcode {
                    Op::Load | Op::AccessChain | Op::InBoundsAccessChain => 1,
                    Op::Store if inst.operands.len() == 2 => 1,
                    _ => 0,
                };
                let volatile = inst.class.opcode == Op::Load && inst.operands.len() > 1;
                for operand in inst.operands.iter().skip(if volatile { 0 } else { plain }) {
                    kept.extend(operand.id_ref_any().and_then(|id| self.places.get(&id)).map(|place| place.variable));
                }
            }
        }
        for (id, ty) in variables {
            let mut count = 0;
            let shape = shape(types, ty, split.contains(&id), &mut count);
            if !kept.contains(&id) && count <= MOST_CELLS {
                self.note(id, &shape);
                self.shapes.insert(id, shape);
            }
        }
    }

    fn note(&mut self, variable: Word, shape: &Shape) {
        match shape {
            Shape::Cell(ty, number) => self.types.extend([((variable, *number), *ty)]),
            Shape::Parts(_, parts) => parts.iter().for_each(|part| self.note(variable, part)),
        }
    }

    /// The part of a variable that an id points to.
    fn target(&self, id: Word) -> Option<(Word, Shape)> {
        let place = self.places.get(&id)?;
        let mut shape = self.shapes.get(&place.variable)?;
        for &index in &place.path {
            match shape {
                Shape::Parts(_, parts) => shape = parts.get(index)?,
                Shape::Cell(..) => return None,
            }
        }
        Some((place.variable, shape.clone()))
    }

    fn rewrite(&mut self, lowering: &mut Lowering<'_>, at: usize, unit: Unit, out: &mut Vec<Unit>) {
        let target = match unit.code.as_slice() {
            [inst] => inst.operands.first().and_then(Operand::id_ref_any).and_then(|id| self.target(id)),
            _ => None,
        };
        let (Some((variable, shape)), Some(inst)) = (target, unit.code.first()) else {
            out.push(unit);
            return;
        };
        match (inst.class.opcode, inst.operands.get(1)) {
            (Op::Load, _) => {
                let value = self.read(lowering, at, variable, &shape, out);
                self.same.insert(inst.result_id.unwrap_or_default(), value);
            }
            (Op::Store, Some(&Operand::IdRef(value))) => self.write(lowering, at, variable, &shape, value, out),
            _ => {}
        }
    }

    fn read(
        &mut self,
        lowering: &mut Lowering<'_>,
        at: usize,
        variable: Word,
        shape: &Shape,
        out: &mut Vec<Unit>,
    ) -> Word {
        match shape {
            Shape::Cell(_, number) => self.leaves(lowering, at, (variable, *number)),
            Shape::Parts(ty, parts) => {
                let parts: Vec<Word> = parts.iter().map(|part| self.read(lowering, at, variable, part, out)).collect();
                let id = lowering.linker.fresh();
                let inst = Instruction::new(Op::CompositeConstruct, Some(*ty), Some(id), ids(&parts));
                out.push(Unit::new(vec![inst], None, true));
                id
            }
        }
    }

    fn write(
        &mut self,
        lowering: &mut Lowering<'_>,
        at: usize,
        variable: Word,
        shape: &Shape,
        value: Word,
        out: &mut Vec<Unit>,
    ) {
        match shape {
            Shape::Cell(_, number) => self.left[at].extend([((variable, *number), value)]),
            Shape::Parts(_, parts) => {
                for (k, part) in parts.iter().enumerate() {
                    let ty = match part {
                        Shape::Cell(ty, _) | Shape::Parts(ty, _) => *ty,
                    };
                    let id = lowering.linker.fresh();
                    let operands = vec![Operand::IdRef(value), Operand::LiteralBit32(k as u32)];
                    let inst = Instruction::new(Op::CompositeExtract, Some(ty), Some(id), operands);
                    out.push(Unit::new(vec![inst], None, true));
                    self.write(lowering, at, variable, part, id, out);
                }
            }
        }
    }

    /// What a node has in a cell, as far as it is written.
    fn leaves(&mut self, lowering: &mut Lowering<'_>, at: usize, cell: Cell) -> Word {
        if let Some(&value) = self.left.get(at).and_then(|left| left.get(&cell)) {
            return value;
        }
        *self.found.entry((at, cell)).or_insert_with(|| {
            self.open.push((at, cell));
            lowering.linker.fresh()
        })
    }

    /// Works out what nodes find, from what those before them leave.
    fn connect(&mut self, lowering: &mut Lowering<'_>, flow: &mut Flow) {
        let index: HashMap<Word, usize> = flow.nodes.iter().enumerate().map(|(at, node)| (node.label, at)).collect();
        let mut parents: Vec<Vec<usize>> = vec![vec![]; flow.nodes.len()];
        for (at, node) in flow.nodes.iter().enumerate() {
            for target in targets(&node.end).iter().filter_map(|label| index.get(label)) {
                if !parents[*target].contains(&at) {
                    parents[*target].push(at);
                }
            }
        }
        let mut phis: Vec<(usize, Instruction)> = vec![];
        while let Some((at, cell)) = self.open.pop() {
            let Some(&id) = self.found.get(&(at, cell)) else { continue };
            let ty = self.types.get(&cell).copied();
            match parents[at][..] {
                [] => self.same.extend([(id, lowering.linker.global(Op::Undef, ty, vec![]))]),
                [parent] => {
                    let value = self.leaves(lowering, parent, cell);
                    self.same.insert(id, value);
                }
                _ => {
                    let mut operands = vec![];
                    for parent in parents[at].clone() {
                        let value = self.leaves(lowering, parent, cell);
                        operands.extend(ids(&[value, flow.nodes[parent].label]));
                    }
                    phis.push((at, Instruction::new(Op::Phi, ty, Some(id), operands)));
                }
            }
        }
        // Phis of one value are that value.
        loop {
            let count = phis.len();
            let mut left = vec![];
            for (at, phi) in phis {
                let own = phi.result_id.unwrap_or_default();
                let values = phi.operands.iter().step_by(2).filter_map(Operand::id_ref_any);
                let mut values: Vec<Word> = values.map(|id| self.resolve(id)).filter(|id| *id != own).collect();
                values.sort_unstable();
                values.dedup();
                match values[..] {
                    [value] => self.same.extend([(own, value)]),
                    _ => left.push((at, phi)),
                }
            }
            phis = left;
            if phis.len() == count {
                break;
            }
        }
        for (at, phi) in phis {
            flow.nodes[at].phis.push(phi);
        }
    }

    fn resolve(&self, mut id: Word) -> Word {
        while let Some(&next) = self.same.get(&id) {
            id = next;
        }
        id
    }

    fn resolved(&self) -> HashMap<Word, Word> {
        self.same.keys().map(|&id| (id, self.resolve(id))).collect()
    }
}

/// The type of a part of a composite.
fn part(types: &HashMap<Word, Instruction>, ty: Word, index: usize) -> Option<Word> {
    let inst = types.get(&ty)?;
    match inst.class.opcode {
        Op::TypeStruct => inst.operands.get(index)?.id_ref_any(),
        Op::TypeArray | Op::TypeVector => inst.operands.first()?.id_ref_any(),
        _ => None,
    }
}

fn shape(types: &HashMap<Word, Instruction>, ty: Word, split: bool, count: &mut usize) -> Shape {
    let length = match types.get(&ty).map(|inst| (inst.class.opcode, inst.operands.as_slice())) {
        Some((Op::TypeStruct, members)) => members.len(),
        Some((Op::TypeVector, [_, Operand::LiteralBit32(length)])) if split => *length as usize,
        Some((Op::TypeArray, [_, Operand::IdRef(length)])) => match types.get(length).map(|inst| &inst.operands[..]) {
            Some([Operand::LiteralBit32(length)]) => *length as usize,
            _ => 0,
        },
        _ => 0,
    };
    if length == 0 || length > MOST_CELLS || *count > MOST_CELLS {
        *count += 1;
        return Shape::Cell(ty, *count - 1);
    }
    let parts = (0..length).map(|k| shape(types, part(types, ty, k).unwrap_or_default(), split, count)).collect();
    Shape::Parts(ty, parts)
}
