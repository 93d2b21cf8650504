//! The robot's destinations, and the items that it carries.

/// A point on the floor, in metres.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

impl Point {
    /// The distance to another point, in metres.
    pub fn distance(self, other: Self) -> f64 {
        (self.x - other.x).hypot(self.y - other.y)
    }
}

/// A place to which the robot can drive. Only this module makes one, so the base cannot be sent
/// anywhere else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    name: &'static str,
    at: Point,
}

impl Place {
    pub fn name(self) -> &'static str {
        self.name
    }

    pub fn at(self) -> Point {
        self.at
    }
}

pub const DOCK: Place = Place { name: "dock", at: Point { x: 0.0, y: 0.0 } };
const KITCHEN: Place = Place { name: "kitchen", at: Point { x: 4.0, y: 1.0 } };
const WORKSHOP: Place = Place { name: "workshop", at: Point { x: 4.0, y: 5.0 } };
const GARDEN: Place = Place { name: "garden", at: Point { x: -1.0, y: 5.0 } };

/// The closed list of destinations, in the order of the robot's round.
pub const PLACES: [Place; 4] = [DOCK, KITCHEN, WORKSHOP, GARDEN];

/// Places that the robot knows and cannot enter.
const LOCKED: [&str; 1] = ["cellar"];

/// An item, by its number in [`ITEMS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item(usize);

/// All items, with their places at the beginning.
pub const ITEMS: [(&str, Place); 3] =
    [("cup", KITCHEN), ("toolbox", WORKSHOP), ("flowers", GARDEN)];

impl Item {
    pub fn name(self) -> &'static str {
        ITEMS[self.0].0
    }

    pub fn number(self) -> usize {
        self.0
    }
}

/// Names of all places that can be ordered, locked ones too.
pub fn place_names() -> impl Iterator<Item = &'static str> {
    PLACES.into_iter().map(Place::name).chain(LOCKED)
}

/// Names of all items.
pub fn item_names() -> impl Iterator<Item = &'static str> {
    ITEMS.into_iter().map(|(name, _)| name)
}

/// The destination of this name.
///
/// # Errors
/// Why the robot cannot drive there, in words for its agent.
pub fn place(name: &str) -> Result<Place, String> {
    if LOCKED.contains(&name) {
        return Err(format!("The door to the {name} is locked."));
    }
    let known = PLACES.into_iter().find(|place| place.name == name);
    known.ok_or_else(|| format!("There is no {name} in this house."))
}

/// The item of this name.
///
/// # Errors
/// The reason, in words for the agent.
pub fn item(name: &str) -> Result<Item, String> {
    let number = ITEMS.iter().position(|(known, _)| *known == name);
    number.map(Item).ok_or_else(|| format!("No {name} found."))
}
