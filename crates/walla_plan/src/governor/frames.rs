//! Device time used by each frame, and the debt or unused time that later frames inherit.

/// Frames that are kept for late measurements, including frames without steps: more than a second
/// at 60 Hz, a quarter of a second at 240 Hz.
const MAX_FRAMES_OPEN: usize = 64;

/// Maximum debt in budgets: a quarter of a second at 60 Hz.
pub const MAX_DEBT_FRAMES: u32 = 15;

/// One frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    number: u64,
    budget_micros: Option<u32>,
    /// Time that earlier frames left: unused time if positive, a debt if negative.
    balance_micros: f32,
    /// Measured time, or predicted time for steps in flight.
    pub used_micros: f32,
    /// Whether a submitted step was predicted to exceed the frame's budget.
    pub is_overdrawn: bool,
    /// Whether a step took much longer than any margin allows for.
    pub has_outlier: bool,
    steps: u32,
    steps_in_flight: u32,
    /// Part of the debt and overrun that was forgiven.
    forgiven_micros: f32,
}

impl Frame {
    /// Unused time (positive) or debt (negative) after this frame, without limits.
    fn left_micros(&self) -> f32 {
        let Some(budget) = self.budget_micros else { return 0.0 };
        self.balance_micros + budget as f32 - self.used_micros + self.forgiven_micros
    }

    /// The balance of the following frame: at most `max_carry` budgets of unused time, and a debt
    /// of at most [`MAX_DEBT_FRAMES`] budgets.
    fn balance_after(&self, max_carry: f32) -> f32 {
        let budget = self.budget_micros.unwrap_or(0) as f32;
        self.left_micros().clamp(-budget * MAX_DEBT_FRAMES as f32, budget * max_carry)
    }

    pub fn granted_micros(&self) -> Option<f32> {
        self.budget_micros.map(|budget| budget as f32 + self.balance_micros.max(0.0))
    }
}

/// The last [`MAX_FRAMES_OPEN`] frames.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    /// Indexed by frame number modulo the length. Frame 0 precedes the first frame.
    latest: [Frame; MAX_FRAMES_OPEN],
    /// Number of the current frame.
    number: u64,
    /// Last frame that was reported as closed, or skipped.
    reported: u64,
    /// Maximum unused time of earlier frames, in budgets.
    max_carry: f32,
}

impl Frames {
    pub fn new(max_carry: f32) -> Self {
        let latest = [Frame::default(); MAX_FRAMES_OPEN];
        Self { latest, number: 0, reported: 0, max_carry }
    }

    fn at(&mut self, number: u64) -> &mut Frame {
        &mut self.latest[number as usize % MAX_FRAMES_OPEN]
    }

    fn current(&self) -> &Frame {
        &self.latest[self.number as usize % MAX_FRAMES_OPEN]
    }

    /// Sets the maximum unused time of earlier frames, in budgets.
    pub fn set_max_carry(&mut self, max_carry: f32) {
        self.max_carry = max_carry;
    }

    pub fn begin(&mut self, budget_micros: Option<u32>) {
        let max_carry = self.max_carry * budget_micros.unwrap_or(0) as f32;
        // Bounded by the new budget too, which may be smaller than the one that was saved from.
        let balance_micros = self.current().balance_after(self.max_carry).min(max_carry);
        self.number += 1;
        let number = self.number;
        *self.at(number) = Frame { number, budget_micros, balance_micros, ..Frame::default() };
        // A frame that is overwritten before its steps are measured is not counted.
        self.reported = self.reported.max(number.saturating_sub(MAX_FRAMES_OPEN as u64));
    }

    /// Cancels all debt known so far: the following frame starts without it.
    pub fn forgive(&mut self) {
        let frame = self.at(self.number);
        frame.forgiven_micros += (-frame.left_micros()).max(0.0);
    }

    /// Remaining part of a budget, with what earlier frames left.
    pub fn left_micros(&self, budget_micros: u32) -> f32 {
        let Frame { balance_micros, used_micros, .. } = self.current();
        (budget_micros as f32 + balance_micros - used_micros).max(0.0)
    }

    pub fn debt_micros(&self) -> f32 {
        (-self.current().balance_micros).max(0.0)
    }

    pub fn carried_micros(&self) -> f32 {
        self.current().balance_micros.max(0.0)
    }

    /// Whether the current frame has submitted a step.
    pub fn is_used(&self) -> bool {
        self.current().steps > 0
    }

    /// Whether the current frame has submitted no step and has no debt.
    pub fn is_fresh(&self) -> bool {
        !self.is_used() && self.current().balance_micros > -1.0
    }

    /// Charges a step to the current frame. Returns the frame's number.
    pub fn charge(&mut self, micros: f32) -> u64 {
        let frame = self.at(self.number);
        frame.used_micros += micros;
        // 0.1 % tolerance for rounding of sums.
        let granted = frame.granted_micros().unwrap_or(f32::INFINITY);
        frame.is_overdrawn |= frame.used_micros > granted * 1.001;
        frame.steps += 1;
        frame.steps_in_flight += 1;
        self.number
    }

    /// The current frame is planned to exceed its budget.
    pub fn mark_overdrawn(&mut self) {
        self.at(self.number).is_overdrawn = true;
    }

    /// Marks a frame that is still stored: one of its steps is an outlier.
    pub fn mark_outlier(&mut self, number: u64) {
        let frame = self.at(number);
        frame.has_outlier |= frame.number == number;
    }

    /// Replaces the charged time of a step by the measured time.
    pub fn replace_charge(&mut self, number: u64, charged_micros: f32, micros: f32) {
        let current = self.number;
        let frame = self.at(number);
        if frame.number != number {
            // The frame is no longer stored: the unexpected time is charged to the current frame.
            self.at(current).used_micros += (micros - charged_micros).max(0.0);
            return;
        }
        frame.used_micros = (frame.used_micros + micros - charged_micros).max(0.0);
        frame.steps_in_flight = frame.steps_in_flight.saturating_sub(1);
        // Propagates the change through the balances of later frames.
        let max_carry = self.max_carry;
        for number in number..current {
            let balance = self.at(number).balance_after(max_carry);
            let next = self.at(number + 1);
            let bound = max_carry * next.budget_micros.unwrap_or(0) as f32;
            next.balance_micros = balance.min(bound);
        }
    }

    /// The next frame, in order, that has ended and whose steps have all been measured. Frames
    /// without steps are skipped.
    pub fn next_closed(&mut self) -> Option<Frame> {
        while self.reported + 1 < self.number {
            let frame = *self.at(self.reported + 1);
            if frame.steps_in_flight > 0 {
                return None;
            }
            self.reported += 1;
            if frame.steps > 0 {
                return Some(frame);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(frames: &mut Frames) -> Option<f32> {
        frames.next_closed().map(|closed| closed.used_micros)
    }

    #[test]
    fn overuse_is_debt_until_later_frames_pay_it() {
        let mut frames = Frames::new(0.0);
        frames.begin(Some(100));
        let step = frames.charge(90.0);
        frames.replace_charge(step, 90.0, 250.0);
        let mut left = Vec::new();
        for _ in 0..3 {
            frames.begin(Some(100));
            left.push(frames.left_micros(100));
        }
        assert_eq!(left, [0.0, 50.0, 100.0]);
        assert_eq!(over(&mut frames), Some(250.0));
        assert_eq!(over(&mut frames), None, "frames that ran nothing are not counted");
    }

    #[test]
    fn a_late_step_is_charged_to_its_own_frame() {
        let mut frames = Frames::new(0.0);
        frames.begin(Some(100));
        let step = frames.charge(60.0);
        frames.begin(Some(100));
        let next = frames.charge(60.0);
        assert_eq!(over(&mut frames), None);
        frames.replace_charge(step, 60.0, 120.0);
        assert_eq!(over(&mut frames), Some(120.0));
        assert_eq!(frames.left_micros(100), 20.0);
        frames.replace_charge(next, 60.0, 90.0);
        frames.begin(Some(100));
        assert_eq!(over(&mut frames), Some(90.0));
        assert_eq!(frames.debt_micros(), 10.0);
    }

    #[test]
    fn unused_time_of_steps_is_available_again() {
        let mut frames = Frames::new(0.0);
        frames.begin(Some(100));
        for _ in 0..3 {
            let step = frames.charge(50.0);
            frames.replace_charge(step, 50.0, 20.0);
        }
        frames.begin(Some(100));
        let closed = frames.next_closed().map(|closed| (closed.used_micros, closed.is_overdrawn));
        assert_eq!(closed, Some((60.0, false)));
        frames.charge(101.0);
        frames.charge(1.0);
        assert!(frames.current().is_overdrawn);
    }

    #[test]
    fn forgiven_debt_is_not_paid_but_later_overruns_are() {
        let mut frames = Frames::new(0.0);
        frames.begin(Some(100));
        let (back, late) = (frames.charge(50.0), frames.charge(50.0));
        frames.replace_charge(back, 50.0, 400.0);
        frames.forgive();
        frames.begin(Some(100));
        assert_eq!(frames.debt_micros(), 0.0);
        frames.replace_charge(late, 50.0, 80.0);
        assert_eq!(frames.debt_micros(), 30.0);
    }

    #[test]
    fn debts_beyond_the_bound_are_forgiven_too() {
        let mut frames = Frames::new(0.0);
        frames.begin(Some(100));
        let step = frames.charge(90.0);
        frames.replace_charge(step, 90.0, 1e5);
        frames.forgive();
        frames.begin(Some(100));
        assert_eq!(frames.debt_micros(), 0.0);
    }

    /// Steps of a slow device complete several frames later: two steps of 60 ms take 29 frames at
    /// 240 Hz.
    #[test]
    fn steps_that_complete_many_frames_later_are_counted() {
        for late in [9, MAX_FRAMES_OPEN - 1] {
            let mut frames = Frames::new(0.0);
            frames.begin(Some(100));
            let step = frames.charge(60.0);
            for _ in 0..late {
                frames.begin(Some(100));
                assert_eq!(over(&mut frames), None);
            }
            frames.replace_charge(step, 60.0, 1_400.0);
            assert_eq!(over(&mut frames), Some(1_400.0));
        }
    }

    #[test]
    fn debts_have_a_bound() {
        let mut frames = Frames::new(0.0);
        frames.begin(Some(100));
        let step = frames.charge(90.0);
        frames.replace_charge(step, 90.0, 1e9);
        let mut sat_out = 0;
        loop {
            frames.begin(Some(100));
            if frames.left_micros(100) > 0.0 {
                break;
            }
            sat_out += 1;
        }
        assert_eq!(sat_out, MAX_DEBT_FRAMES);
    }

    #[test]
    fn a_step_that_never_completes_blocks_no_frame() {
        let mut frames = Frames::new(0.0);
        frames.begin(Some(100));
        let lost = frames.charge(10.0);
        for _ in 0..2 * MAX_FRAMES_OPEN {
            frames.begin(Some(100));
            let step = frames.charge(10.0);
            frames.replace_charge(step, 10.0, 11.0);
        }
        let mut counted = 0;
        while over(&mut frames).is_some() {
            counted += 1;
        }
        assert!(counted > 0);
        frames.replace_charge(lost, 10.0, 50.0);
        assert_eq!(frames.left_micros(100), 100.0 - 11.0 - 40.0, "the current frame pays");
    }
}
