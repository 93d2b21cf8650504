//! A simulated base with two driven wheels, and the controller that steers it along a path.

use std::collections::VecDeque;
use std::f64::consts::{PI, TAU};
use std::time::Duration;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;

use crate::TICK;
use crate::house::{DOCK, ITEMS, Item, PLACES, Place, Point};

/// Distance between the wheels, in metres.
const TRACK_METRES: f64 = 0.4;

/// Maximum speed of a wheel, in metres per second.
const MAX_WHEEL_SPEED: f64 = 1.2;

/// Maximum acceleration of a wheel, in metres per second squared.
const MAX_WHEEL_ACCELERATION: f64 = 1.5;

/// Distance at which a place counts as reached, in metres.
const REACHED_METRES: f64 = 0.1;

/// Duration of the cleaning of a room.
const CLEANING: Duration = Duration::from_secs(1);

/// Drives the base by one step per frame.
pub struct BasePlugin;

impl Plugin for BasePlugin {
    fn build(&self, app: &mut App) {
        app.init_resource::<Base>().add_systems(Update, drive);
    }
}

/// A checked task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Task {
    Go(Place),
    Fetch(Item),
    Deliver(Item, Place),
    Clean(Place),
    /// Stop for this duration, then continue with the round.
    Wait(Duration),
    Stop,
    Charge,
}

/// The base has executed its task.
#[derive(Event, Debug, PartialEq)]
pub struct TaskEnded {
    /// The result, in words for the agent.
    pub result: String,
}

/// Position and motion of the base.
#[derive(Resource, Debug)]
pub struct Base {
    pub at: Point,
    /// Direction, in radians from the x axis.
    heading: f64,
    /// Left and right, in metres per second.
    wheels: [f64; 2],
    /// The rest of the task.
    steps: VecDeque<Step>,
    task: Option<Task>,
    /// Without a task: the number of the place that is next on the round; `None`: stand.
    round: Option<usize>,
    /// Where the items are; `None`: on the robot.
    items: [Option<Point>; ITEMS.len()],
    /// Metres driven since the start.
    pub driven: f64,
}

/// A part of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Drive(Point),
    Take(Item),
    Put(Item),
    Pause { ticks_left: u32 },
    Halt,
}

impl Step {
    fn pause(time: Duration) -> Self {
        let ticks = time.as_nanos() / TICK.as_nanos();
        Self::Pause { ticks_left: u32::try_from(ticks).unwrap_or(u32::MAX) }
    }
}

impl Default for Base {
    fn default() -> Self {
        Self {
            at: DOCK.at(),
            heading: 0.0,
            wheels: [0.0; 2],
            steps: VecDeque::new(),
            task: None,
            round: Some(1),
            items: ITEMS.map(|(_, place)| Some(place.at())),
            driven: 0.0,
        }
    }
}

impl Base {
    /// Begins a task. It replaces the current one.
    pub fn start(&mut self, task: Task) {
        self.task = Some(task);
        self.round = None;
        self.steps.clear();
        match task {
            Task::Go(place) => self.steps.push_back(Step::Drive(place.at())),
            Task::Fetch(item) => self.take(item),
            Task::Deliver(item, place) => {
                self.take(item);
                self.steps.extend([Step::Drive(place.at()), Step::Put(item)]);
            }
            Task::Clean(place) => {
                self.steps.extend([Step::Drive(place.at()), Step::pause(CLEANING)]);
            }
            Task::Wait(time) => self.steps.push_back(Step::pause(time)),
            Task::Stop => self.steps.push_back(Step::Halt),
            Task::Charge => self.steps.push_back(Step::Drive(DOCK.at())),
        }
    }

    /// Whether the base has no task.
    pub fn is_idle(&self) -> bool {
        self.task.is_none()
    }

    /// Adds the steps to an item that is not on the robot.
    fn take(&mut self, item: Item) {
        if let Some(at) = self.items[item.number()] {
            self.steps.extend([Step::Drive(at), Step::Take(item)]);
        }
    }

    fn nearest(&self) -> usize {
        let distance = |i: &usize| PLACES[*i].at().distance(self.at);
        (0..PLACES.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
    }

    /// One period of the control loop. Returns the task that ended in it.
    fn tick(&mut self) -> Option<Task> {
        let (target, is_step_done) = self.advance();
        self.roll(target.map_or([0.0; 2], |point| self.wheels_towards(point)));
        if is_step_done {
            self.steps.pop_front();
        }
        let ended = if self.steps.is_empty() { self.task.take() } else { None };
        if matches!(ended, Some(Task::Wait(_))) {
            self.round = Some(self.nearest());
        }
        ended
    }

    /// Executes the current step. Returns the point to drive to, and whether the step is done.
    fn advance(&mut self) -> (Option<Point>, bool) {
        let is_reached = |point: Point| point.distance(self.at) < REACHED_METRES;
        match self.steps.front_mut() {
            None => {
                let target = self.round.map(|next| PLACES[next].at());
                if target.is_some_and(is_reached) {
                    self.round = self.round.map(|next| (next + 1) % PLACES.len());
                }
                (target, false)
            }
            Some(Step::Drive(point)) => (Some(*point), is_reached(*point)),
            Some(Step::Take(item)) => {
                self.items[item.number()] = None;
                (None, true)
            }
            Some(Step::Put(item)) => {
                self.items[item.number()] = Some(self.at);
                (None, true)
            }
            Some(Step::Pause { ticks_left }) => {
                *ticks_left = ticks_left.saturating_sub(1);
                (None, *ticks_left == 0)
            }
            Some(Step::Halt) => (None, self.wheels == [0.0; 2]),
        }
    }

    /// Turns towards the point; the speed ahead grows with the alignment.
    fn wheels_towards(&self, point: Point) -> [f64; 2] {
        let bearing = (point.y - self.at.y).atan2(point.x - self.at.x);
        let off = (bearing - self.heading + PI).rem_euclid(TAU) - PI;
        let ahead = MAX_WHEEL_SPEED * off.cos().max(0.0) * point.distance(self.at).clamp(0.2, 1.0);
        let turn = (1.5 * off).clamp(-2.0, 2.0) * TRACK_METRES / 2.0;
        [ahead - turn, ahead + turn].map(|speed| speed.clamp(-MAX_WHEEL_SPEED, MAX_WHEEL_SPEED))
    }

    fn roll(&mut self, wanted: [f64; 2]) {
        let seconds = TICK.as_secs_f64();
        let max_change = MAX_WHEEL_ACCELERATION * seconds;
        for (speed, wanted) in self.wheels.iter_mut().zip(wanted) {
            *speed += (wanted - *speed).clamp(-max_change, max_change);
        }
        let [left, right] = self.wheels;
        let metres = (left + right) / 2.0 * seconds;
        self.heading += (right - left) / TRACK_METRES * seconds;
        self.at.x += metres * self.heading.cos();
        self.at.y += metres * self.heading.sin();
        self.driven += metres.abs();
    }
}

fn drive(mut base: ResMut<Base>, mut commands: Commands) {
    if let Some(task) = base.tick() {
        commands.trigger(TaskEnded { result: task.result() });
    }
}

impl Task {
    /// The result of the task after its execution, in words for the agent.
    fn result(self) -> String {
        match self {
            Self::Go(place) => format!("You are in the {}.", place.name()),
            Self::Fetch(item) => format!("You have the {}.", item.name()),
            Self::Deliver(item, place) => {
                format!("The {} is in the {}.", item.name(), place.name())
            }
            Self::Clean(place) => format!("The {} is clean.", place.name()),
            Self::Wait(_) => "The time is over.".to_owned(),
            Self::Stop => "You have stopped.".to_owned(),
            Self::Charge => "You are charging.".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house;

    /// Runs the loop, and returns the tasks that ended.
    fn drive_for(base: &mut Base, seconds: u32) -> Vec<Task> {
        (0..seconds * 100).filter_map(|_| base.tick()).collect()
    }

    #[test]
    fn the_robot_arrives_and_stops() {
        for place in PLACES {
            let mut base = Base::default();
            base.start(Task::Go(place));
            assert_eq!(drive_for(&mut base, 30), [Task::Go(place)]);
            assert!(base.at.distance(place.at()) < 0.3, "{place:?}: {base:?}");
            assert!(base.is_idle() && base.wheels == [0.0; 2], "{base:?}");
        }
    }

    #[test]
    fn the_robot_stops_within_a_second() {
        let mut base = Base::default();
        base.start(Task::Go(PLACES[2]));
        drive_for(&mut base, 2);
        base.start(Task::Stop);
        assert_eq!(drive_for(&mut base, 1), [Task::Stop]);
        let at = base.at;
        assert_eq!(drive_for(&mut base, 5), [], "the first task is replaced");
        assert!(base.at.distance(at) < 1e-6);
    }

    #[test]
    fn the_robot_continues_after_a_wait() {
        let mut base = Base::default();
        let wait = Task::Wait(Duration::from_secs(2));
        base.start(wait);
        assert_eq!(drive_for(&mut base, 2), [wait]);
        assert!(base.driven < 0.01);
        drive_for(&mut base, 60);
        assert!(base.driven > 10.0);
    }

    #[test]
    fn a_delivered_item_is_at_its_new_place() {
        let (cup, workshop) = (house::item("cup").unwrap(), house::place("workshop").unwrap());
        let mut base = Base::default();
        base.start(Task::Fetch(cup));
        assert_eq!(drive_for(&mut base, 20), [Task::Fetch(cup)]);
        assert_eq!(base.items[cup.number()], None, "on the robot");
        assert!(base.at.distance(house::place("kitchen").unwrap().at()) < 0.3);
        for start in [cup, cup] {
            base.start(Task::Deliver(start, workshop));
            assert_eq!(drive_for(&mut base, 30), [Task::Deliver(cup, workshop)]);
            let cup_at = base.items[cup.number()].expect("not on the robot");
            assert!(cup_at.distance(workshop.at()) < 0.3);
        }
    }
}
