//! The scene: a field of rotating cubes on a plane, one light with a shadow, a camera that orbits
//! it.

use bevy::camera::RenderTarget;
use bevy::core_pipeline::tonemapping::Tonemapping;
use bevy::light::CascadeShadowConfigBuilder;
use bevy::prelude::*;
use bevy::render::render_resource::TextureFormat;

pub struct ScenePlugin {
    /// Width and height in pixels.
    pub size: (u32, u32),
    pub cubes: u32,
}

/// Render target of the camera.
#[derive(Resource)]
pub struct Canvas(pub Handle<Image>);

/// Rotation about an axis, in radians per second.
#[derive(Component)]
struct Spin(Vec3);

/// Orbits the centre.
#[derive(Component)]
struct Orbit;

/// Edge of the cell of one cube.
const CELL: f32 = 1.6;

impl Plugin for ScenePlugin {
    fn build(&self, app: &mut App) {
        let Self { size, cubes } = *self;
        app.insert_resource(ClearColor(Color::srgb(0.52, 0.66, 0.82)))
            .add_systems(
                Startup,
                move |mut commands: Commands, mut images: ResMut<Assets<Image>>| {
                    camera(&mut commands, &mut images, size);
                    light(&mut commands);
                },
            )
            .add_systems(
                Startup,
                move |commands: Commands,
                      meshes: ResMut<Assets<Mesh>>,
                      materials: ResMut<Assets<StandardMaterial>>| {
                    field(commands, meshes, materials, cubes);
                },
            )
            .add_systems(Update, (spin, orbit));
    }
}

fn camera(commands: &mut Commands, images: &mut Assets<Image>, (width, height): (u32, u32)) {
    let image = Image::new_target_texture(width, height, TextureFormat::Rgba8UnormSrgb, None);
    let canvas = images.add(image);
    commands.spawn((
        Camera3d::default(),
        RenderTarget::Image(canvas.clone().into()),
        Tonemapping::AcesFitted, // the default needs a table that is not built in
        // Data-centre GPUs have few raster units: this scene does not use all of a 60 Hz frame.
        Msaa::Off,
        Orbit,
        Transform::default(),
    ));
    commands.insert_resource(Canvas(canvas));
}

fn light(commands: &mut Commands) {
    commands.spawn((
        DirectionalLight { shadow_maps_enabled: true, illuminance: 9_000.0, ..default() },
        CascadeShadowConfigBuilder { num_cascades: 1, maximum_distance: 90.0, ..default() }.build(),
        Transform::from_xyz(30.0, 60.0, 20.0).looking_at(Vec3::ZERO, Vec3::Y),
    ));
}

fn field(
    mut commands: Commands,
    mut meshes: ResMut<Assets<Mesh>>,
    mut materials: ResMut<Assets<StandardMaterial>>,
    cubes: u32,
) {
    let cube = meshes.add(Cuboid::from_length(1.0));
    let paints: Vec<_> = (0..12_u8)
        .map(|paint| {
            let base_color = Color::hsl(f32::from(paint) * 30.0, 0.55, 0.5);
            materials.add(StandardMaterial { base_color, perceptual_roughness: 0.6, ..default() })
        })
        .collect();
    // Four layers of a square.
    let side = (f64::from(cubes) / 4.0).sqrt().ceil().max(1.0) as u32;
    let middle = (side as f32 - 1.0) / 2.0;
    for number in 0..cubes {
        let (layer, cell) = (number % 4, number / 4);
        let (x, z) = ((cell % side) as f32 - middle, (cell / side) as f32 - middle);
        let Some(paint) = paints.get((number * 7 + cell) as usize % paints.len()) else { continue };
        let turn = (number * 37 % 100) as f32 / 50.0 - 1.0;
        commands.spawn((
            Mesh3d(cube.clone()),
            MeshMaterial3d(paint.clone()),
            Transform::from_xyz(x * CELL, 1.0 + layer as f32 * CELL, z * CELL),
            Spin(Vec3::new(turn, 1.0 - turn, 0.5)),
        ));
    }
    let ground = side as f32 * CELL * 2.5;
    commands.spawn((
        Mesh3d(meshes.add(Plane3d::default().mesh().size(ground, ground))),
        MeshMaterial3d(materials.add(StandardMaterial {
            base_color: Color::srgb(0.42, 0.46, 0.40),
            perceptual_roughness: 0.9,
            ..default()
        })),
    ));
    commands.insert_resource(Extent(side as f32 * CELL));
}

/// Edge of the field.
#[derive(Resource)]
struct Extent(f32);

fn spin(time: Res<Time>, mut cubes: Query<(&Spin, &mut Transform)>) {
    let seconds = time.delta_secs();
    cubes.par_iter_mut().for_each(|(spin, mut at)| {
        at.rotate_local(Quat::from_scaled_axis(spin.0 * seconds));
    });
}

fn orbit(time: Res<Time>, extent: Res<Extent>, mut eyes: Query<&mut Transform, With<Orbit>>) {
    let angle = time.elapsed_secs() * 0.15;
    let away = extent.0 * 0.62 + 6.0;
    for mut eye in &mut eyes {
        *eye = Transform::from_xyz(angle.cos() * away, away * 0.42, angle.sin() * away)
            .looking_at(Vec3::Y * 2.0, Vec3::Y);
    }
}
