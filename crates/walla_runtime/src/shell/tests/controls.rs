//! Settings in transit.

use std::time::Duration;

use crate::engine_core::Control;
use crate::options::FrameBudget;
use crate::shell::controls::Controls;

#[test]
fn the_latest_setting_is_taken_once() {
    let controls = Controls::new();
    assert_eq!(controls.take().count(), 0);
    controls.begin_with(FrameBudget::Unlimited);
    assert_eq!(controls.latest_budget(), FrameBudget::Unlimited);
    assert_eq!(controls.take().count(), 0);
    let latest = FrameBudget::Time(Duration::from_millis(3));
    let budget = Control::Budget(latest);
    controls.set_budget(FrameBudget::Unlimited);
    controls.set_budget(latest);
    controls.set_kv_tokens(7);
    assert_eq!(controls.take().collect::<Vec<_>>(), [budget, Control::KvTokens(7)]);
    assert_eq!(controls.take().count(), 0);
    assert_eq!(controls.latest_budget(), latest, "also when it was taken");
    controls.set_budget(FrameBudget::Time(Duration::MAX));
    let unlimited = Control::Budget(FrameBudget::Unlimited);
    assert_eq!(controls.take().collect::<Vec<_>>(), [unlimited]);
    controls.set_budget(FrameBudget::Auto);
    assert_eq!(controls.take().collect::<Vec<_>>(), [Control::Budget(FrameBudget::Auto)]);
}

#[test]
fn reservations_add_up_and_end() {
    let controls = Controls::new();
    let reserved = |nanos| [Control::Reserved(Duration::from_nanos(nanos))];
    for (before, nanos, sum) in [(0, 7, 7), (0, 5, 12), (7, 3, 8), (5, 0, 3), (3, 0, 0)] {
        controls.reserve(before, nanos);
        assert_eq!(controls.take().collect::<Vec<_>>(), reserved(sum));
        assert_eq!(controls.take().count(), 0);
    }
}
