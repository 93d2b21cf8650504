//! A simulated base with two driven wheels, and the controller that steers it along a path.

use std::f64::consts::{PI, TAU};

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;

use crate::TICK;
use crate::action::Action;
use crate::house::{PLACES, Point};

/// Distance between the wheels, in metres.
const TRACK_METRES: f64 = 0.4;

/// Maximum speed of a wheel, in metres per second.
const WHEEL_SPEED_MAX: f64 = 0.8;

/// Maximum acceleration of a wheel, in metres per second squared.
const WHEEL_ACCELERATION_MAX: f64 = 1.5;

/// Distance at which a place counts as reached, in metres.
const REACHED_METRES: f64 = 0.1;

/// Drives the base by one step per frame.
pub struct BasePlugin;

impl Plugin for BasePlugin {
    fn build(&self, app: &mut App) {
        app.init_resource::<Base>().add_systems(Update, drive);
    }
}

/// Position and motion of the base.
#[derive(Resource, Debug)]
pub struct Base {
    pub at: Point,
    /// Direction, in radians from the x axis.
    heading: f64,
    /// Left and right, in metres per second.
    wheels: [f64; 2],
    order: Order,
    /// Metres driven since the start.
    pub driven: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Stand,
    Pause {
        ticks_left: u32,
    },
    GoTo(Point),
    /// Following the path, towards the place with this number.
    Round(usize),
}

impl Default for Base {
    fn default() -> Self {
        Self {
            at: PLACES[0].1,
            heading: 0.0,
            wheels: [0.0; 2],
            order: Order::Round(1),
            driven: 0.0,
        }
    }
}

impl Base {
    /// Executes a checked action.
    pub fn act(&mut self, action: Action) {
        self.order = match action {
            Action::Go(_, point) => Order::GoTo(point),
            Action::Stop => Order::Stand,
            Action::Wait(pause) => {
                let ticks = pause.as_nanos() / TICK.as_nanos();
                Order::Pause { ticks_left: u32::try_from(ticks).unwrap_or(u32::MAX) }
            }
            Action::Say => self.order,
        };
    }

    fn nearest(&self) -> usize {
        let distance = |i: &usize| PLACES[*i].1.distance(self.at);
        (0..PLACES.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
    }

    fn tick(&mut self) {
        let target = match self.order {
            Order::Stand => None,
            Order::Pause { ticks_left: 0 } => {
                self.order = Order::Round(self.nearest());
                None
            }
            Order::Pause { ticks_left } => {
                self.order = Order::Pause { ticks_left: ticks_left - 1 };
                None
            }
            Order::GoTo(point) => Some(point),
            Order::Round(next) => Some(PLACES[next % PLACES.len()].1),
        };
        let wanted = target.map_or([0.0; 2], |point| self.wheels_towards(point));
        if target.is_some_and(|point| point.distance(self.at) < REACHED_METRES) {
            self.order = match self.order {
                Order::Round(next) => Order::Round((next + 1) % PLACES.len()),
                _ => Order::Stand,
            };
        }
        self.roll(wanted);
    }

    /// Turns towards the point; the speed ahead grows with the alignment.
    fn wheels_towards(&self, point: Point) -> [f64; 2] {
        let bearing = (point.y - self.at.y).atan2(point.x - self.at.x);
        let off = (bearing - self.heading + PI).rem_euclid(TAU) - PI;
        let ahead = WHEEL_SPEED_MAX * off.cos().max(0.0) * point.distance(self.at).clamp(0.2, 1.0);
        let turn = (1.5 * off).clamp(-2.0, 2.0) * TRACK_METRES / 2.0;
        [ahead - turn, ahead + turn].map(|speed| speed.clamp(-WHEEL_SPEED_MAX, WHEEL_SPEED_MAX))
    }

    fn roll(&mut self, wanted: [f64; 2]) {
        let seconds = TICK.as_secs_f64();
        let change_max = WHEEL_ACCELERATION_MAX * seconds;
        for (speed, wanted) in self.wheels.iter_mut().zip(wanted) {
            *speed += (wanted - *speed).clamp(-change_max, change_max);
        }
        let [left, right] = self.wheels;
        let metres = (left + right) / 2.0 * seconds;
        self.heading += (right - left) / TRACK_METRES * seconds;
        self.at.x += metres * self.heading.cos();
        self.at.y += metres * self.heading.sin();
        self.driven += metres.abs();
    }
}

fn drive(mut base: ResMut<Base>) {
    base.tick();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::house::place;

    fn drive_for(base: &mut Base, seconds: u32) {
        (0..seconds * 100).for_each(|_| base.tick());
    }

    #[test]
    fn the_robot_arrives_and_stops() {
        for (name, point) in PLACES {
            let mut base = Base::default();
            base.act(Action::Go(name, place(name).unwrap().1));
            drive_for(&mut base, 30);
            assert!(base.at.distance(point) < 0.3, "{name}: {base:?}");
            assert_eq!(base.order, Order::Stand);
        }
    }

    #[test]
    fn the_robot_stops_within_a_second() {
        let mut base = Base::default();
        drive_for(&mut base, 5);
        base.act(Action::Stop);
        drive_for(&mut base, 1);
        let at = base.at;
        drive_for(&mut base, 5);
        assert!(base.at.distance(at) < 1e-6);
    }

    #[test]
    fn the_robot_continues_after_a_wait() {
        let mut base = Base::default();
        base.act(Action::Wait(Duration::from_secs(2)));
        drive_for(&mut base, 2);
        assert!(base.driven < 0.01);
        drive_for(&mut base, 60);
        assert!(base.driven > 10.0);
    }
}
