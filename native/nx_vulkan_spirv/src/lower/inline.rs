//! A function and all that it calls as one graph.

use std::collections::HashMap;

use rspirv::dr::{Function, Instruction, Operand};
use rspirv::spirv::{Op, Word};

use super::Lowering;
use super::flow::{Flow, Node, Unit, branch, id};
use super::order::{callee, is_pure, with_ids};

impl Lowering<'_> {
    /// The graph of a function with all calls inlined of what has steps. `None` for what no machine can run.
    pub(super) fn flow(&mut self, root: &Function, bodies: &HashMap<Word, Function>) -> Option<Flow> {
        let mut flow = Flow::default();
        self.expand(root, bodies, HashMap::new(), None, &mut flow)?;
        let types = self.all_types();
        self.promote(&mut flow, &types);
        self.split_phis(&mut flow);
        Some(flow)
    }

    /// Copies a function's blocks into the graph; calls end in the continuation, under the id of the call.
    fn expand(
        &mut self,
        function: &Function,
        bodies: &HashMap<Word, Function>,
        mut renamed: HashMap<Word, Word>,
        call: Option<(&Instruction, Word)>,
        flow: &mut Flow,
    ) -> Option<Vec<Instruction>> {
        if call.is_some() {
            self.name_copies(function, &mut renamed);
        }
        let first = flow.nodes.len();
        let mut ends: HashMap<Word, Word> = HashMap::new();
        let mut returned: Vec<Operand> = vec![];
        for block in &function.blocks {
            let start = id(&named(block.label.as_ref()?, &renamed));
            let mut node = Node::new(start);
            for inst in &block.instructions {
                let inst = named(inst, &renamed);
                match inst.class.opcode {
                    Op::Phi => node.phis.push(inst),
                    Op::Variable => flow.declare(inst, &mut node)?,
                    Op::SelectionMerge | Op::LoopMerge => node.merge = Some(inst),
                    Op::Branch | Op::BranchConditional | Op::Switch | Op::Unreachable => node.end = inst,
                    Op::Return | Op::ReturnValue => match call {
                        Some((_, continuation)) => {
                            if let Some(value) = inst.operands.first() {
                                returned.extend([value.clone(), Operand::IdRef(node.label)]);
                            }
                            node.end = branch(continuation);
                        }
                        None => node.end = inst,
                    },
                    Op::Kill | Op::TerminateInvocation | Op::IgnoreIntersectionKHR => return None,
                    Op::FunctionCall if callee(&inst).is_some_and(|callee| bodies.contains_key(&callee)) => {
                        node = self.expand_call(&inst, node, bodies, flow)?;
                    }
                    _ => {
                        let is_pure = is_pure(&inst) || self.is_pure_call(&inst);
                        node.units.push(Unit::new(vec![inst], None, is_pure));
                    }
                }
            }
            ends.insert(start, node.label);
            flow.nodes.push(node);
        }
        for parent in flow.nodes.iter_mut().skip(first).flat_map(Node::parents) {
            if let Operand::IdRef(label) = parent {
                *label = ends.get(label).copied().unwrap_or(*label);
            }
        }
        let Some((call, _)) = call else { return Some(vec![]) };
        if returned.is_empty() {
            return Some(vec![]);
        }
        Some(vec![Instruction::new(Op::Phi, call.result_type, call.result_id, returned)])
    }

    /// New ids for what a copy of a function makes.
    fn name_copies(&mut self, function: &Function, renamed: &mut HashMap<Word, Word>) {
        for inst in function.blocks.iter().flat_map(|block| block.label.iter().chain(&block.instructions)) {
            if let Some(id) = inst.result_id {
                let fresh = self.linker.fresh();
                renamed.insert(id, fresh);
                if inst.class.opcode != Op::Label {
                    self.copied.push((id, fresh));
                }
            }
        }
    }

    /// Ends a node with a call of one of the bodies. Answers the node in which the caller goes on.
    fn expand_call(
        &mut self,
        call: &Instruction,
        before: Node,
        bodies: &HashMap<Word, Function>,
        flow: &mut Flow,
    ) -> Option<Node> {
        let body = bodies.get(&callee(call)?)?;
        let arguments = call.operands.iter().skip(1).filter_map(Operand::id_ref_any);
        let parameters = body.parameters.iter().filter_map(|parameter| parameter.result_id);
        let inner = parameters.zip(arguments).collect();
        let mut behind = Node::new(self.linker.fresh());
        let entry = flow.nodes.len() + 1;
        flow.nodes.push(before);
        behind.phis = self.expand(body, bodies, inner, Some((call, behind.label)), flow)?;
        // Its entry follows the block that calls it.
        let label = flow.nodes.get(entry)?.label;
        flow.nodes[entry - 1].end = branch(label);
        Some(behind)
    }
}

impl Flow {
    /// Takes a variable, which gets its first value where it is declared.
    fn declare(&mut self, mut variable: Instruction, node: &mut Node) -> Option<()> {
        if variable.operands.len() > 1 {
            let value = variable.operands.pop()?;
            let store = Instruction::new(Op::Store, None, None, vec![Operand::IdRef(id(&variable)), value]);
            node.units.push(Unit::new(vec![store], None, false));
        }
        self.variables.push(variable);
        Some(())
    }
}

/// An instruction with other ids, its own included.
fn named(inst: &Instruction, renamed: &HashMap<Word, Word>) -> Instruction {
    let mut inst = with_ids(inst, renamed);
    inst.result_id = inst.result_id.map(|id| renamed.get(&id).copied().unwrap_or(id));
    inst
}
