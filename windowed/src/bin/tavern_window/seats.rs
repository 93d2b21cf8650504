//! Seats of the guests.

use bevy::prelude::*;

/// A seat.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// Index in [`walla_examples::REGULARS`].
    pub persona: usize,
    /// Position of the feet.
    pub feet: Vec2,
    /// Index of the seat of the guest's partner.
    pub partner: Option<usize>,
}

/// Upper edge of the floor, where the wall begins.
pub const WALL_Y: f32 = -8.0;

/// Front row, just above the player's questions.
pub const FRONT_Y: f32 = -250.0;

/// Back row.
pub const BACK_Y: f32 = -2.0;

const fn seat(persona: usize, x: f32, y: f32, partner: usize) -> Seat {
    Seat { persona, feet: Vec2::new(x, y), partner: Some(partner) }
}

/// Three tables in front, one at the wall, the bar with the innkeeper (persona 1) behind it, and
/// the bard by the fire. The first guests are paired.
pub const SEATS: [Seat; 11] = [
    seat(0, -105.0, FRONT_Y, 1),      // Greta
    seat(4, 105.0, FRONT_Y, 0),       // Voss
    seat(1, 470.0, BACK_Y + 20.0, 3), // Odo
    seat(5, 288.0, BACK_Y, 2),        // Tamsin
    seat(6, -525.0, FRONT_Y, 5),      // Pip
    seat(7, -315.0, FRONT_Y, 4),      // Hesper
    seat(8, 315.0, FRONT_Y, 7),       // Ferro
    seat(9, 525.0, FRONT_Y, 6),       // Ines
    seat(2, -62.0, BACK_Y, 9),        // Mirelle
    seat(3, 112.0, BACK_Y, 8),        // Anselm
    Seat { persona: 10, feet: Vec2::new(-238.0, BACK_Y), partner: None }, // Quill
];
