//! What those who use an engine keep with it, which the engine itself does not know.

use std::any::Any;
use std::sync::OnceLock;

/// One value of each type that is asked for, made when that is first done. There are few, so that they stand one behind
/// the other.
#[derive(Debug, Default)]
pub(crate) struct States(OnceLock<Box<(Box<dyn Any + Send + Sync>, States)>>);

impl States {
    pub fn get<T: Any + Default + Send + Sync>(&self) -> &T {
        let (first, others) = &**self.0.get_or_init(|| Box::new((Box::new(T::default()), States::default())));
        first.downcast_ref().unwrap_or_else(|| others.get())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn each_type_has_one_value() {
        let states = States::default();
        *states.get::<Mutex<u32>>().lock().unwrap() = 1;
        states.get::<Mutex<String>>().lock().unwrap().push('x');
        *states.get::<Mutex<u32>>().lock().unwrap() += 1;
        assert_eq!(*states.get::<Mutex<u32>>().lock().unwrap(), 2);
        assert_eq!(*states.get::<Mutex<String>>().lock().unwrap(), "x");
    }
}
