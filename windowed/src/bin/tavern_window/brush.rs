//! Helpers for flat shapes.

use std::f32::consts::FRAC_PI_2;

use bevy::asset::RenderAssetUsages;
use bevy::ecs::system::SystemParam;
use bevy::prelude::*;
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat};

const PLATE: Color = Color::srgba(0.08, 0.06, 0.05, 0.82);

/// A shape to spawn.
pub type Painted = (Mesh2d, MeshMaterial2d<ColorMaterial>, Transform);

/// Creates shapes from their descriptions.
#[derive(SystemParam)]
pub struct Brush<'w> {
    meshes: ResMut<'w, Assets<Mesh>>,
    materials: ResMut<'w, Assets<ColorMaterial>>,
    images: ResMut<'w, Assets<Image>>,
}

impl Brush<'_> {
    /// A shape in one colour, its centre at `x`, `y`; a larger `z` is nearer.
    pub fn shape(&mut self, shape: impl Into<Mesh>, color: Color, at: impl Into<Vec3>) -> Painted {
        (
            Mesh2d(self.meshes.add(shape)),
            MeshMaterial2d(self.materials.add(ColorMaterial::from_color(color))),
            Transform::from_translation(at.into()),
        )
    }

    /// A rectangle.
    pub fn rect(&mut self, size: (f32, f32), color: Color, at: impl Into<Vec3>) -> Painted {
        self.shape(Rectangle::new(size.0, size.1), color, at)
    }

    /// A disc.
    pub fn disc(&mut self, radius: f32, color: Color, at: impl Into<Vec3>) -> Painted {
        self.shape(Circle::new(radius), color, at)
    }

    /// The plate behind a name; `length` without its round ends.
    pub fn plate(&mut self, radius: f32, length: f32, at: impl Into<Vec3>) -> Painted {
        let (mesh, material, at) = self.shape(Capsule2d::new(radius, length), PLATE, at);
        (mesh, material, at.with_rotation(Quat::from_rotation_z(FRAC_PI_2)))
    }

    /// Light around a point: brightest in the centre, transparent at the edge.
    pub fn glow(&mut self, radius: f32, color: Color, at: impl Into<Vec3>) -> (Sprite, Transform) {
        const SIDE: u32 = 64;
        let image = glow_image(SIDE, color.to_srgba());
        (
            Sprite {
                image: self.images.add(image),
                custom_size: Some(Vec2::splat(radius * 2.0)),
                ..default()
            },
            Transform::from_translation(at.into()),
        )
    }
}

/// A square image of light; its strength falls with the square of the distance to the edge.
fn glow_image(side: u32, color: Srgba) -> Image {
    let middle = (side as f32 - 1.0) / 2.0;
    let [red, green, blue] = [color.red, color.green, color.blue].map(|part| (part * 255.0) as u8);
    let pixels = (0..side * side).flat_map(|pixel| {
        let (x, y) = ((pixel % side) as f32, (pixel / side) as f32);
        let left = (1.0 - Vec2::new(x - middle, y - middle).length() / middle).max(0.0);
        [red, green, blue, (color.alpha * left * left * 255.0) as u8]
    });
    Image::new(
        Extent3d { width: side, height: side, depth_or_array_layers: 1 },
        TextureDimension::D2,
        pixels.collect(),
        TextureFormat::Rgba8UnormSrgb,
        RenderAssetUsages::RENDER_WORLD,
    )
}
