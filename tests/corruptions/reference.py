"""The benchmark's corruptions written plainly, in double precision, with every draw given from
outside.

Nothing here uses the package: scikit-image, SciPy, OpenCV and Pillow only, one step after the
other, loops where the description has loops. Images are (H, W, C) bytes.
"""

import math
from io import BytesIO

import cv2
import numpy as np
from PIL import Image
from scipy import ndimage
from skimage import color, filters


def finish(values):
    return (np.clip(values, 0, 1) * 255).astype(np.uint8)


def gaussian(values, sigma):
    return filters.gaussian(values, sigma=sigma, channel_axis=-1)


def gaussian_blur(image, sigma):
    return finish(gaussian(image / 255.0, sigma))


def lens(radius, alias):
    if radius <= 8:
        steps, ksize = range(-8, 9), (3, 3)
    else:
        steps, ksize = range(-radius, radius + 1), (5, 5)
    binary = np.array([[x * x + y * y <= radius * radius for x in steps] for y in steps]).astype(
        np.float32
    )
    binary /= np.sum(binary)
    return cv2.GaussianBlur(binary, ksize=ksize, sigmaX=alias)


def defocus_blur(image, radius, alias):
    weights = lens(radius, alias).astype(np.float64)
    return finish(ndimage.correlate(image / 255.0, weights[..., None], mode="mirror"))


def glass_blur(image, offsets, sigma, reach, scans):
    height, width = image.shape[:2]
    pixels = (gaussian(image / 255.0, sigma) * 255).astype(np.uint8)
    for scan in offsets:
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                code = int(scan[h - reach - 1, w - reach - 1])
                dy, dx = code // (2 * reach) - reach, code % (2 * reach) - reach
                pixels[h, w] = pixels[h + dy, w + dx]  # a copy: nothing is swapped
    return finish(gaussian(pixels / 255.0, sigma))


def motion_blur(image, angle, radius, sigma):
    height, width = image.shape[:2]
    count = 2 * radius + 1
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(count)]
    y, x = np.mgrid[:height, :width]
    total = np.zeros(image.shape)
    for i in range(count):
        right = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        down = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        total += (
            weights[i] * image[np.clip(y + down, 0, height - 1), np.clip(x + right, 0, width - 1)]
        )
    return np.floor(total / sum(weights) + 0.5).astype(np.uint8)


def clipped_zoom(image, factor):
    height, width = image.shape[:2]
    rows, columns = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - rows) // 2, (width - columns) // 2
    grown = ndimage.zoom(
        image[top : top + rows, left : left + columns], (factor, factor, 1), order=1
    )
    top, left = (grown.shape[0] - height) // 2, (grown.shape[1] - width) // 2
    return grown[top : top + height, left : left + width]


def zoom_blur(image, stop, step):
    pixels = (image / 255.0).astype(np.float32)
    total = np.zeros_like(pixels)
    factors = np.arange(1, stop, step)
    for factor in factors:
        total += clipped_zoom(pixels, factor)
    return finish((pixels + total) / (len(factors) + 1))


def brightness(image, shift):
    hsv = color.rgb2hsv(image / 255.0)
    hsv[..., 2] = np.clip(hsv[..., 2] + shift, 0, 1)
    return finish(color.hsv2rgb(hsv))


def saturate(image, scale, shift):
    hsv = color.rgb2hsv(image / 255.0)
    hsv[..., 1] = np.clip(hsv[..., 1] * scale + shift, 0, 1)
    return finish(color.hsv2rgb(hsv))


def contrast(image, factor):
    pixels = image / 255.0
    means = np.mean(pixels, axis=(0, 1), keepdims=True)
    return finish((pixels - means) * factor + means)


def pixelate(image, factor):
    height, width = image.shape[:2]
    picture = Image.fromarray(image.squeeze())
    picture = picture.resize((int(width * factor), int(height * factor)), Image.BOX)
    return np.array(picture.resize((width, height), Image.BOX)).reshape(image.shape)


def jpeg_compression(image, quality, **options):
    buffer = BytesIO()
    Image.fromarray(image.squeeze()).save(buffer, "JPEG", quality=quality, **options)
    return np.array(Image.open(buffer)).reshape(image.shape)


def elastic_transform(image, corners, across, down, alpha, sigma, jitter):
    pixels = image.astype(np.float32) / 255.0
    height, width, channels = image.shape
    center, arm = np.float32((height, width)) // 2, min(height, width) // 3
    before = np.float32([center + arm, [center[0] + arm, center[1] - arm], center - arm])
    after = before + (corners * jitter).astype(np.float32)
    affine = cv2.getAffineTransform(before, after)
    warped = cv2.warpAffine(
        pixels, affine, (width, height), borderMode=cv2.BORDER_REFLECT_101
    ).reshape(image.shape)
    dx = (filters.gaussian(across, sigma, mode="reflect", truncate=3) * alpha).astype(np.float32)
    dy = (filters.gaussian(down, sigma, mode="reflect", truncate=3) * alpha).astype(np.float32)
    y, x, z = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    return finish(
        ndimage.map_coordinates(
            warped, [y + dy[..., None], x + dx[..., None], z], order=1, mode="reflect"
        )
    )


def snow(image, flakes, angle, loc, scale, zoom, threshold, radius, sigma, mix):
    """``flakes`` are standard normal on the whole (H, W) picture."""
    pixels = image.astype(np.float32) / 255.0
    layer = clipped_zoom((flakes * scale + loc)[..., None], zoom)
    layer[layer < threshold] = 0
    layer = motion_blur(finish(layer), angle, radius, sigma) / 255.0
    gray = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[..., None]
    pixels = mix * pixels + (1 - mix) * np.maximum(pixels, gray * 1.5 + 0.5)
    return finish(pixels + layer + np.rot90(layer, k=2))


def frost(image, texture, row, column, image_weight, frost_weight):
    ice = texture[row : row + image.shape[0], column : column + image.shape[1]]
    return np.clip(image_weight * image + frost_weight * ice, 0, 255).astype(np.uint8)


def plasma(draws, decay):
    """Diamond-square point by point; neighbors wrap around."""
    size = 2 ** len(draws)
    field = np.zeros((size, size))
    width = 100.0
    for square, across, down in draws:
        n = len(square)
        step = size // n
        half = step // 2
        for i in range(n):
            for j in range(n):
                y, x = i * step, j * step
                near = [field[(y + a) % size, (x + b) % size] for b in (0, step) for a in (0, step)]
                field[y + half, x + half] = sum(near) / 4 + width * width * square[i, j]
        for i in range(n):
            for j in range(n):
                y, x = i * step, j * step
                row = [field[y + half, x + half], field[(y - half) % size, x + half]]
                row += [field[y, x], field[y, (x + step) % size]]
                field[y, x + half] = sum(row) / 4 + width * width * across[i, j]
                column = [field[y + half, x + half], field[y + half, (x - half) % size]]
                column += [field[y, x], field[(y + step) % size, x]]
                field[y + half, x] = sum(column) / 4 + width * width * down[i, j]
        width /= decay
    return (field - field.min()) / (field - field.min()).max()


def fog(image, draws, amount, decay):
    pixels = image / 255.0
    brightest = pixels.max()
    cloud = plasma(draws, decay)[: image.shape[0], : image.shape[1], None]
    return finish((pixels + amount * cloud) * brightest / (brightest + amount))


def spatter(image, field, loc, scale, sigma, threshold, strength, mud):
    pixels = image.astype(np.float32) / 255.0
    liquid = filters.gaussian(field * scale + loc, sigma=sigma)
    liquid[liquid < threshold] = 0
    if mud:
        cover = filters.gaussian(
            np.where(liquid > threshold, 1, 0).astype(np.float32), sigma=strength
        )
        cover[cover < 0.8] = 0
        brown = np.ones_like(pixels) * np.float32([63 / 255.0, 42 / 255.0, 20 / 255.0])
        return finish(pixels * (1 - cover[..., None]) + brown * cover[..., None])
    layer = (liquid * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(layer, 50, 150), cv2.DIST_L2, 5)
    distance = cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8)
    distance = cv2.equalizeHist(distance)
    distance = cv2.filter2D(distance, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
    distance = cv2.blur(distance, (3, 3)).astype(np.float32)
    gain = layer * distance
    gain = gain / gain.max() * np.float32(strength)
    pale = np.ones_like(pixels) * np.float32([175 / 255.0, 238 / 255.0, 238 / 255.0])
    return finish(pixels + gain[..., None] * pale)
