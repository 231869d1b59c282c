//! Results of ops that may be pending.

use super::node::Node;
use crate::sync::Arc;
use crate::{Tensor, Type};

/// A tensor, or the promise of one. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Lazy(pub(super) Inner);

#[derive(Debug, Clone)]
pub(super) enum Inner {
    Ready(Tensor),
    Pending { node: Arc<Node>, result: u32 },
}

impl From<Tensor> for Lazy {
    fn from(tensor: Tensor) -> Lazy {
        Lazy(Inner::Ready(tensor))
    }
}

impl Lazy {
    /// The tensor, if it is computed.
    pub fn ready(&self) -> Option<Tensor> {
        match &self.0 {
            Inner::Ready(tensor) => Some(Tensor::clone(tensor)),
            Inner::Pending { node, result } => node.result(*result),
        }
    }

    /// Its type and shape.
    pub fn ty(&self) -> Type {
        match &self.0 {
            Inner::Ready(tensor) => tensor.view.ty(),
            Inner::Pending { node, result } => node.ty(*result),
        }
    }

    /// The tensor, if it is computed, else the promise.
    ///
    /// # Errors
    /// The promise.
    pub fn into_ready(self) -> std::result::Result<Tensor, Lazy> {
        match self.0 {
            Inner::Ready(tensor) => Ok(tensor),
            Inner::Pending { ref node, result } => node.result(result).ok_or(self),
        }
    }

    /// The tensor or the promise, without the detour over a node that is computed.
    pub(super) fn settled(self) -> Lazy {
        match &self.0 {
            Inner::Ready(_) => self,
            Inner::Pending { node, result } => node.result(*result).map_or(self, Lazy::from),
        }
    }

    pub(super) fn pending(&self) -> Option<&Arc<Node>> {
        match &self.0 {
            Inner::Ready(_) => None,
            Inner::Pending { node, .. } => Some(node),
        }
    }
}
