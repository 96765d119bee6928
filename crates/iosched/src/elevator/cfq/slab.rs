//! Numbered slots; the one freed last is reused first.

#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(at) = self.free.pop() {
            self.slots[at as usize] = Some(value);
            return at;
        }
        self.slots.push(Some(value));
        u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 streams")
    }

    pub(super) fn remove(&mut self, at: u32) {
        assert!(self.slots[at as usize].take().is_some(), "place {at} is in use");
        self.free.push(at);
    }

    pub(super) fn get(&self, at: u32) -> &T {
        self.slots[at as usize].as_ref().expect("place is in use")
    }

    pub(super) fn get_mut(&mut self, at: u32) -> &mut T {
        self.slots[at as usize].as_mut().expect("place is in use")
    }
}
