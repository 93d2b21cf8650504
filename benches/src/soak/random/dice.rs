/// Random numbers from a seed: xorshift (Marsaglia).
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Independent dice for one of several tasks.
    pub fn split(&mut self) -> Self {
        Self::new(self.throw(u64::MAX))
    }

    /// A number below `sides`.
    pub fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.throw(many) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.throw(of.len().max(1) as u64) as usize).copied()
    }
}
