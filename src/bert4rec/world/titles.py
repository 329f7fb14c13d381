"""Titles for the built-in catalogue: what things are called in a shop, such as "Linen Shirt, Navy"."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

COLOURS = "Black,Bone,Charcoal,Clay,Cream,Forest,Indigo,Moss,Mustard,Navy,Ochre,Plum,Rust,Sage,Slate,White"
SIZES = "Mini,Small,Medium,Large,Extra Large,Set of Two,Set of Three,Set of Four,Set of Six,Set of Eight"
WEIGHTS = "25 g,50 g,75 g,100 g,125 g,150 g,200 g,250 g,500 g,1 kg"


@dataclass(frozen=True)
class Department:
    """A department's vocabulary. Any quality goes with any thing in any variant."""

    name: str
    qualities: str
    things: str
    variants: str


DEPARTMENTS = (
    Department(
        "Clothing",
        "Linen,Cotton,Merino,Corduroy,Denim,Flannel,Silk,Fleece,Jersey,Tweed",
        "Shirt,Jacket,Trousers,Dress,Jumper,Skirt,Cardigan,Waistcoat,Coat,Scarf",
        COLOURS,
    ),
    Department(
        "Kitchen",
        "Cast-Iron,Copper,Enamel,Stoneware,Stainless-Steel,Bamboo,Glass,Ceramic,Walnut,Slate",
        "Saucepan,Teapot,Mixing Bowl,Casserole,Serving Dish,Butter Dish,Egg Cup,Spice Jar,Jug,Trivet",
        SIZES,
    ),
    Department(
        "Books",
        "The Quiet,The Last,The Hidden,A Distant,The Glass,A Borrowed,The Northern,The Salt,The Paper,A Silver",
        "Harbour,Garden,Letter,Orchard,Lighthouse,Season,Crossing,Voyage,Cartographer,Summer",
        "Paperback,Hardback,Audiobook,E-book,Large Print,Illustrated,Pocket Edition,Boxed Set,Annotated,Signed",
    ),
    Department(
        "Garden",
        "Terracotta,Galvanised,Cedar,Stone,Zinc,Recycled,Folding,Hanging,Hand-Forged,Weathered",
        "Planter,Watering Can,Trowel,Bird Table,Bench,Trellis,Plant Stand,Seed Tray,Lantern,Fork",
        SIZES,
    ),
    Department(
        "Tea and Coffee",
        "Smoky,Organic,Single-Estate,House,Decaffeinated,Spiced,First-Flush,Dark-Roast,Breakfast,Evening",
        "Assam,Darjeeling,Oolong,Green Tea,Rooibos,Espresso Beans,Filter Coffee,Chai,Mint Tea,Cocoa",
        WEIGHTS,
    ),
    Department(
        "Toys",
        "Wooden,Plush,Magnetic,Clockwork,Painted,Felt,Giant,Pocket,Glow-in-the-Dark,Classic",
        "Train Set,Puzzle,Building Blocks,Bear,Kite,Spinning Top,Marble Run,Dinosaur,Farm Set,Robot",
        "Age 1 and Up,Age 2 and Up,Age 3 and Up,Age 4 and Up,Age 5 and Up,Age 6 and Up,Age 8 and Up,Age 10 and Up",
    ),
    Department(
        "Bath and Body",
        "Lavender,Rose,Cedarwood,Sea-Salt,Oatmeal,Bergamot,Almond,Eucalyptus,Honey,Unscented",
        "Soap,Bath Salts,Hand Cream,Body Butter,Shampoo Bar,Face Mask,Foot Balm,Scrub,Lip Balm,Shaving Cream",
        WEIGHTS,
    ),
    Department(
        "Lighting",
        "Brass,Rattan,Opal-Glass,Paper,Concrete,Smoked-Glass,Oak,Industrial,Pleated,Adjustable",
        "Table Lamp,Floor Lamp,Pendant,Wall Light,Desk Lamp,Lampshade,Night Light,Ceiling Light,Spotlight,Lantern",
        COLOURS,
    ),
    Department(
        "Shoes",
        "Leather,Suede,Canvas,Waxed,Nubuck,Woven,Lined,Waterproof,Cork-Soled,Quilted",
        "Boots,Loafers,Trainers,Sandals,Brogues,Slippers,Clogs,Espadrilles,Derby Shoes,Wellingtons",
        COLOURS,
    ),
    Department(
        "Bedroom",
        "Washed-Linen,Percale,Brushed-Cotton,Sateen,Bamboo,Waffle,Striped,Embroidered,Hemp,Quilted",
        "Duvet Cover,Pillowcase,Fitted Sheet,Throw,Bedspread,Blanket,Cushion,Eye Mask,Dressing Gown,Bed Runner",
        COLOURS,
    ),
    Department(
        "Stationery",
        "Dotted,Ruled,Plain,Recycled,Cloth-Bound,Marbled,Spiral,Pocket,Leather-Bound,Refillable",
        "Notebook,Sketchbook,Diary,Planner,Journal,Address Book,Guest Book,Photo Album,Recipe Book,Memo Pad",
        COLOURS,
    ),
    Department(
        "Outdoor",
        "Lightweight,Waterproof,Insulated,Folding,Compact,Four-Season,Ripstop,Roll-Top,Padded,Ultralight",
        "Tent,Rucksack,Sleeping Bag,Camping Chair,Hammock,Picnic Rug,Dry Bag,Tarp,Hip Pack,Cool Bag",
        COLOURS,
    ),
    Department(
        "Furniture",
        "Oak,Walnut,Ash,Rattan,Velvet,Painted,Reclaimed,Mid-Century,Folding,Stackable",
        "Armchair,Bookcase,Coffee Table,Stool,Sideboard,Footstool,Bedside Table,Dining Chair,Coat Stand,Shelf",
        COLOURS,
    ),
    Department(
        "Sports",
        "Training,Competition,Junior,Recycled,Weighted,Soft-Grip,Travel,Studio,All-Weather,Beginner's",
        "Yoga Mat,Skipping Rope,Football,Dumbbell,Tennis Racket,Kettlebell,Foam Roller,Swim Float,Basketball,Helmet",
        COLOURS,
    ),
    Department(
        "Pets",
        "Rope,Plush,Washable,Orthopaedic,Natural,Reflective,Travel,Ceramic,Waterproof,Padded",
        "Dog Bed,Cat Cushion,Lead,Collar,Food Bowl,Chew Toy,Carrier,Blanket,Harness,Scratching Post",
        COLOURS,
    ),
    Department(
        "Pantry",
        "Wild,Smoked,Organic,Stone-Ground,Candied,Roasted,Pickled,Salted,Spiced,Hand-Picked",
        "Almonds,Chutney,Oats,Honey,Olives,Mustard,Walnuts,Chilli Flakes,Tomatoes,Figs",
        WEIGHTS,
    ),
)

BRANDS = (
    "Alder,Ashby,Barrow,Birchwood,Calder,Corran,Dunmore,Eastwick,Elmstead,Fairholm,Fenwick,Garrick,Hallam,Harwood,"
    "Ingleby,Kestrel,Larkfield,Linden,Marlow,Merrow,Norvale,Oakhurst,Pellam,Quarry Lane,Redfern,Rowan,Selby,"
    "Stanmore,Tarrant,Thornby,Underhill,Vale,Wexcombe,Whitcombe,Wrenfield,Yarrow"
)


def invent_titles(num_items: Sequence[int], rng: np.random.Generator) -> list[str]:
    """Distinct titles, department by department: the first `num_items[0]` are of the first department, and so on.

    A department with more items than its words can name adds brands, and then numbers.
    """
    assert len(num_items) <= len(DEPARTMENTS)
    titles: list[str] = []
    for department, number in zip(DEPARTMENTS, num_items, strict=False):
        titles += _department_titles(department, number, rng)
    return titles


def _department_titles(department: Department, number: int, rng: np.random.Generator) -> list[str]:
    qualities, things, variants = (
        words.split(",") for words in (department.qualities, department.things, department.variants)
    )
    plain = [
        f"{quality} {thing}, {variant}" for quality in qualities for thing in things for variant in variants
    ]
    num_series = -(-number // len(plain))
    chosen = rng.permutation(num_series * len(plain))[:number]
    return [_of_series(*divmod(int(choice), len(plain)), plain) for choice in chosen]


def _of_series(series: int, word: int, plain: list[str]) -> str:
    """The title as it is in series 0; with a brand in the next ones; with brand and number when brands run out."""
    if series == 0:
        return plain[word]
    brands = BRANDS.split(",")
    number, brand = divmod(series - 1, len(brands))
    title = f"{brands[brand]} {plain[word]}"
    return title if number == 0 else f"{title}, No. {number + 1}"
