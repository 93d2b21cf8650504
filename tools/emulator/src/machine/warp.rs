//! A warp: 32 lanes that execute together as long as they can.
//!
//! Divergent lanes form groups, each with a program counter. The group with the lowest program
//! counter runs first, so groups reconverge where their paths join. A group that waits for lanes of
//! other groups (a shuffle, a barrier) is suspended until they have reached the same instruction.

use super::access::Bad;
use super::op::{Code, Guard, Long, Op, Source, Word};
use super::team::Site;
use super::tensor::Lanes;

/// Instructions after which another warp runs: a kernel may wait for another warp's write.
const TURN_INSTRUCTIONS: u32 = 100_000;

/// Lanes with the same program counter.
#[derive(Clone, Copy, Debug)]
struct Group {
    place: u32,
    lanes: u32,
    /// Suspended, until the other members reach this instruction.
    waits: bool,
}

/// Why a warp has paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// All lanes have ended.
    Done,
    /// Its time slice is over. `idle`: it polls for a value that is not there yet.
    Turn {
        idle: bool,
    },
    /// All lanes are at a barrier with this number of threads (`None`: of the block).
    Barrier {
        id: u32,
        threads: Option<u32>,
    },
    /// At the cluster barrier.
    ClusterArrive,
    ClusterWait,
}

/// Why a warp cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Bad(Bad),
    Trap,
    /// Lanes wait for each other at different instructions.
    Parted,
}

impl From<Bad> for Stop {
    fn from(bad: Bad) -> Self {
        Self::Bad(bad)
    }
}

pub(super) struct Warp {
    pub(super) words: Vec<Lanes>,
    pub(super) longs: Vec<[u64; 32]>,
    pub(super) predicates: Vec<u32>,
    /// Local memory of all lanes, consecutively.
    pub(super) local: Vec<u8>,
    pub(super) local_bytes: usize,
    /// Index of its first thread in the block.
    pub(super) first_thread: u32,
    /// Lanes whose program counter is `place`.
    pub(super) active: u32,
    place: u32,
    ended: u32,
    groups: Vec<Group>,
    /// Lowest program counter at which other groups may reconverge with the active one.
    meeting: u32,
}

impl Warp {
    pub(super) fn new(code: &Code) -> Self {
        let [words, longs, predicates] = code.registers.map(|count| count as usize);
        Self {
            words: vec![[0; 32]; words],
            longs: vec![[0; 32]; longs],
            predicates: vec![0; predicates],
            local: vec![0; 32 * code.local_bytes as usize],
            local_bytes: code.local_bytes as usize,
            first_thread: 0,
            active: 0,
            place: 0,
            ended: 0,
            groups: Vec::new(),
            meeting: u32::MAX,
        }
    }

    /// Resets the warp to the beginning of a kernel, for the given threads. Registers keep old
    /// values: kernels must not rely on them.
    pub(super) fn begin(&mut self, first_thread: u32, threads: u32) {
        self.first_thread = first_thread;
        self.active = if threads >= 32 { u32::MAX } else { (1 << threads) - 1 };
        self.ended = !self.active;
        self.place = 0;
        self.groups.clear();
        self.meeting = u32::MAX;
    }

    pub(super) fn word(&self, source: Word) -> Lanes {
        match source {
            Source::Register(register) => self.words[register as usize],
            Source::Number(number) => [number; 32],
        }
    }

    pub(super) fn long(&self, source: Long) -> [u64; 32] {
        match source {
            Source::Register(register) => self.longs[register as usize],
            Source::Number(number) => [number; 32],
        }
    }

    /// The given lanes for which the predicate holds.
    pub(super) fn guarded(&self, guard: Guard, lanes: u32) -> u32 {
        let predicate = self.predicates[guard.register as usize];
        lanes & if guard.is_negated { !predicate } else { predicate }
    }

    /// Line of the PTX at the program counter.
    pub(super) fn line(&self, code: &Code) -> u32 {
        code.instructions.get(self.place as usize).map_or(0, |instruction| instruction.line)
    }

    /// Runs until the warp pauses.
    pub(super) fn run(&mut self, code: &Code, site: &mut Site<'_>) -> Result<Pause, Stop> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            #[expect(unsafe_code, reason = "calls code for a processor that was just recognised")]
            // SAFETY: the processor supports avx2 and fma.
            return unsafe { self.run_avx2(code, site) };
        }
        self.go(code, site)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn run_avx2(&mut self, code: &Code, site: &mut Site<'_>) -> Result<Pause, Stop> {
        self.go(code, site)
    }

    #[inline(always)]
    fn go(&mut self, code: &Code, site: &mut Site<'_>) -> Result<Pause, Stop> {
        for _ in 0..TURN_INSTRUCTIONS {
            if self.place >= self.meeting {
                self.meet();
            }
            let instruction = &code.instructions[self.place as usize];
            let lanes = match instruction.guard {
                None => self.active,
                Some(guard) => self.guarded(guard, self.active),
            };
            match instruction.op {
                Op::Branch { target } => {
                    self.branch(target, lanes);
                    continue;
                }
                _ if lanes == 0 => {}
                Op::Exit => {
                    if self.end(lanes) {
                        return Ok(Pause::Done);
                    }
                    continue;
                }
                Op::Trap => return Err(Stop::Trap),
                Op::Barrier { id, threads } => {
                    if self.waits_for(u32::MAX)? {
                        continue;
                    }
                    self.place += 1;
                    let first = lanes.trailing_zeros() as usize;
                    let threads = threads.map(|threads| self.word(threads)[first]);
                    return Ok(Pause::Barrier { id: self.word(id)[first], threads });
                }
                Op::ClusterArrive | Op::ClusterWait => {
                    if self.waits_for(u32::MAX)? {
                        continue;
                    }
                    self.place += 1;
                    let arrives = matches!(instruction.op, Op::ClusterArrive);
                    return Ok(if arrives { Pause::ClusterArrive } else { Pause::ClusterWait });
                }
                ref op => {
                    if let Some(members) = members(op)
                        && self.waits_for(self.word(members)[lanes.trailing_zeros() as usize])?
                    {
                        continue;
                    }
                    let goes_on = self.execute(op, lanes, site)?;
                    if !goes_on {
                        self.place += 1;
                        return Ok(Pause::Turn { idle: true });
                    }
                }
            }
            self.place += 1;
        }
        Ok(Pause::Turn { idle: false })
    }

    #[inline(always)]
    fn branch(&mut self, target: u32, taken: u32) {
        let rest = self.active & !taken;
        if taken == 0 {
            self.place += 1;
        } else if rest == 0 {
            self.place = target;
        } else {
            self.part(target, taken, rest);
        }
    }

    /// Divergence: the group with the higher program counter becomes inactive.
    #[cold]
    fn part(&mut self, target: u32, taken: u32, rest: u32) {
        let next = self.place + 1;
        let ((place, active), (ahead, lanes)) = if target < next {
            ((target, taken), (next, rest))
        } else {
            ((next, rest), (target, taken))
        };
        (self.place, self.active) = (place, active);
        self.groups.push(Group { place: ahead, lanes, waits: false });
        self.find_meeting();
    }

    /// Merges the groups at this program counter, then switches to the group with the lowest one.
    #[cold]
    fn meet(&mut self) {
        let (place, mut active) = (self.place, self.active);
        self.groups.retain(|group| {
            let is_here = group.place == place;
            active |= if is_here { group.lanes } else { 0 };
            !is_here
        });
        self.active = active;
        let ready = self.groups.iter_mut().filter(|group| !group.waits && group.place < place);
        if let Some(behind) = ready.min_by_key(|group| group.place) {
            let next = *behind;
            *behind = Group { place, lanes: active, waits: false };
            (self.place, self.active) = (next.place, next.lanes);
        }
        self.find_meeting();
    }

    /// While a group is suspended, other lanes may reach it at any instruction.
    fn find_meeting(&mut self) {
        let of = |group: &Group| if group.waits { 0 } else { group.place };
        self.meeting = self.groups.iter().map(of).min().unwrap_or(u32::MAX);
    }

    /// Ends lanes. `true`: none are left.
    fn end(&mut self, lanes: u32) -> bool {
        self.ended |= lanes;
        self.active &= !lanes;
        if self.active != 0 {
            self.place += 1;
            return false;
        }
        self.groups.iter_mut().for_each(|group| group.waits = false);
        self.next_group().is_none()
    }

    /// Switches to the runnable group with the lowest program counter.
    fn next_group(&mut self) -> Option<()> {
        let ready = self.groups.iter().enumerate().filter(|(_, group)| !group.waits);
        let (i, _) = ready.min_by_key(|(_, group)| group.place)?;
        let group = self.groups.swap_remove(i);
        (self.place, self.active) = (group.place, group.lanes);
        self.find_meeting();
        Some(())
    }

    /// If some of `members` are at another instruction, suspends this group and switches to
    /// another.
    #[inline(always)]
    fn waits_for(&mut self, members: u32) -> Result<bool, Stop> {
        if members & !self.ended & !self.active == 0 {
            return Ok(false);
        }
        self.stand_aside().map(|()| true)
    }

    #[cold]
    fn stand_aside(&mut self) -> Result<(), Stop> {
        self.groups.push(Group { place: self.place, lanes: self.active, waits: true });
        self.next_group().ok_or(Stop::Parted)
    }
}

/// The lanes that must execute an instruction together.
fn members(op: &Op) -> Option<Word> {
    const ALL: Word = Word::Number(u32::MAX);
    Some(match op {
        Op::Shuffle { members, .. }
        | Op::Vote { members, .. }
        | Op::Reduce { members, .. }
        | Op::Elect { members, .. }
        | Op::WarpBarrier { members } => *members,
        Op::Multiply { .. } | Op::LoadMatrix { .. } | Op::Transpose { .. } => ALL,
        _ => return None,
    })
}
