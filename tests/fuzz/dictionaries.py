"""Words of every format, for mutants: types, markers, names, and what has broken readers before."""

IDX = (b"\0\0\x08\x03", b"\0\0\x08\x01", b"\x1f\x8b\x08", b"\x7f\xff\xff\xff")
CIFAR = (b"\x09", b"\x0a", b"\x63", b"\x64", bytes(3073))
ARRAYS = (
    *(b"\x93NUMPY\x01\0", b"\x93NUMPY\x02\0", b"'descr': '<f8'", b"'|O'", b"'|u1'", b"'<f2'", b"'<c8'", b"'<M8[s]'"),
    *(b"'shape': (3,)", b"(1000000000, 4)", b"()", b"(0,)", b"True", b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"),
    *(b"x.npy", b"y.npy", b"x_train.npy", b"y_test.npy", b"\x0c\0", b"\x0e\0", b"\x63\0", b"((((((((((", b"1j"),
)
TENSORS = (
    *(b'"dtype":"F64"', b'"F8_E4M3"', b'"F8_E5M2"', b'"C64"', b'"BF16"', b'"BOOL"', b'"I64"', b'"U64"', b'"F4"'),
    *(b'"shape":[', b'"data_offsets":[0,0]', b'"__metadata__":{', b'"checksum":', b'"recipe":', b"\\u0000", b"\\n"),
    *(b"NaN", b"[[[[[[[[", b'{"a":' * 50, b'"state":', b"[model]\\n", b"1000000000", b"\0" * 8, b"\xff" * 8),
)
RECIPE = (
    *(b"[model]", b"[auxiliary]", b"[training]", b"[adversarial]", b"[purifier]", b"[objective]", b"[[training]]"),
    *(b"name = ", b"data = ", b"architecture = ", b"kind = ", b"task = ", b"epochs = ", b"lr = ", b"grid = "),
    *(b'"8/255"', b"1979-05-27T07:32:00Z", b"0xffff", b"1_000", b"inf", b"nan", b"true", b"[" * 3000, b"{a = " * 60),
    *(b"a." * 300, b'"""', b"'''", b"\\u0000", b"\xff\xfe", b"\xef\xbb\xbf", b"[1, 'a']", b"{}", b"[]", b'""', b"\n"),
)
ROWS = (
    *(b'"n": ', b'"correct": ', b'"schema": 1', b'"provenance": {', b'"measures": {"a": NaN}', b'"checksum": ', b"NaN"),
    *(b'"seconds": "1"', b"Infinity", b"\\ud800", b"[" * 2000, b'{"a":' * 500, b"\n", b"\r", b"null", b"true", b"\xff"),
)
MANIFEST = (
    *(b'"schema": "soap-export/1"', b'"parts": {', b'"file": "', b'"sha256": "', b"/dev/zero", b"../", b"[" * 2000),
    *(b'"a": {"file": "../x", "sha256": "a"}', b'"a": {"file": "/dev/zero", "sha256": ""}, ', b'"b": {"file": 7}'),
    *(b"\\u0000", b"\\ud800", b"null", b"{}", b"[]", b"true", b"\xff", b'{"a":' * 500),
)
PICTURES = (
    *(b"IHDR", b"IDAT", b"IEND", b"PLTE", b"tRNS", b"zTXt", b"iCCP", b"eXIf", b"acTL", b"fcTL", b"fdAT", b"gAMA"),
    *(b"\xff\xd8", b"\xff\xc0", b"\xff\xc2", b"\xff\xc4", b"\xff\xda", b"\xff\xd9", b"\xff\xe1", b"Exif\0\0"),
    *(b"RIFF", b"WEBP", b"VP8 ", b"VP8L", b"VP8X", b"ANIM", b"ANMF", b"BM", b"GIF89a", b"II*\0", b"MM\0*"),
    *(b"MPF\0", b"ICC_PROFILE\0", b"Adobe", b"JFIF\0", b"\x89PNG\r\n\x1a\n", b"P6\n9 9\n255\n", b"8BPS", b"%!PS-Adobe"),
)
JSON = (
    *(b'{"image": ', b"[[", b"]]", b"1e999", b"-0.0", b"NaN", b"true", b"null", b'"a"', b"[" * 2000, b"{}", b"[]"),
    *(b"\xff\xfe", b"\\ud800", b"1e-400"),
)
TAR = (
    *(b"../../escaped", b"/absolute", b"cifar-10-batches-bin/test_batch.bin", b"ustar\0", b"ustar  \0", b"path=../x\n"),
    *(b"1", b"2", b"3", b"5", b"L", b"K", b"x", b"g", b"S", b"77777777777\0", b"\x80" + bytes(10) + b"\xff"),
)
