#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Frames that Adverb encoded, judged by software that is not Adverb.

tshark decodes every header field of every frame; scapy (and, where scapy has nothing, a bitwise
CRC of this file) computes the CRCs.  What make_frames put into each frame comes as JSON from
make_frames itself.  Exit status 77: this machine has no referees.

  referees.py PATH/make_frames
"""
import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

logging.getLogger("scapy").setLevel(logging.ERROR)
try:
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP, UDP
    from scapy.utils import RawPcapReader
except ImportError:
    BTH = None

MAKE_FRAMES = None
RC, UC, UD, CNP, XRC = 0, 1, 3, 4, 5


def opaque_to_tshark(frame):
    """tshark 4.0 has no rows for annexes A14 (XRC), A17 (CNP) and A19 (FLUSH, ATOMIC WRITE): it
    shows their BTH and then raw bytes, which we compare as such."""
    return frame["transport"] in (CNP, XRC) or frame["name"] in ("FLUSH", "ATOMIC_WRITE")


# Members of frames.json and the tshark fields that must show the same.
BTH_FIELDS = {"opcode": "infiniband.bth.opcode", "se": "infiniband.bth.se", "m": "infiniband.bth.m",
              "pad": "infiniband.bth.padcnt", "pkey": "infiniband.bth.p_key",
              "destqp": "infiniband.bth.destqp", "a": "infiniband.bth.a",
              "psn": "infiniband.bth.psn"}
EXTENSION_FIELDS = {"qkey": "infiniband.deth.q_key", "srcqp": "infiniband.deth.srcqp",
                    "va": "infiniband.reth.va", "rkey": "infiniband.reth.r_key",
                    "dmalen": "infiniband.reth.dmalen", "swap": "infiniband.atomiceth.swapdt",
                    "compare": "infiniband.atomiceth.cmpdt", "syndrome": "infiniband.aeth.syndrome",
                    "msn": "infiniband.aeth.msn", "original": "infiniband.atomicacketh.origremdt"}
BYTES_FIELDS = {"imm": "infiniband.immdt", "ieth": "infiniband.ieth"}
LINK_FIELDS = {"vl": "infiniband.lrh.vl", "sl": "infiniband.lrh.sl", "dlid": "infiniband.lrh.dlid",
               "slid": "infiniband.lrh.slid", "tclass": "infiniband.grh.tclass",
               "flowlabel": "infiniband.grh.flowlabel"}
IP_FIELDS = {"source_port": "udp.srcport", "id": "ip.id", "tos": "ip.dsfield"}
OTHERS = ["ipv6.tclass", "ip.checksum.status", "udp.checksum.status", "ip.flags.df",
          "infiniband.bth.tver", "data.data", "infiniband.vendor", "infiniband.invariant.crc",
          "infiniband.variant.crc", "infiniband.lrh.lnh", "infiniband.lrh.pktlen", "_ws.malformed"]
# Payloads are random bytes: nobody shall guess protocols in them.
HEURISTICS = ["eth_over_ib", "iser_infiniband", "lnet_ib", "mellanox_eoib", "nvme_rdma",
              "rpcrdma_infiniband", "sdp_infiniband", "smb_direct_infiniband", "smcr_infiniband"]


def number(text):
    return int(text.replace(":", ""), 16) if ":" in text else int(text, 0)


def tshark(pcap):
    fields = [f for table in (BTH_FIELDS, EXTENSION_FIELDS, BYTES_FIELDS, LINK_FIELDS, IP_FIELDS)
              for f in table.values()] + OTHERS
    command = ["tshark", "-r", pcap, "-n", "-T", "fields", "-E", "separator=|",
               "-E", "occurrence=l", "-o", "ip.check_checksum:TRUE",
               "-o", "udp.check_checksum:TRUE"]
    command += [word for f in fields for word in ("-e", f)]
    command += [word for h in HEURISTICS for word in ("--disable-heuristic", h)]
    environment = dict(os.environ, TZ="UTC", LC_ALL="C.UTF-8")
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, env=environment).stdout
    return [dict(zip(fields, line.split("|"))) for line in out.splitlines()]


def bitwise_crc(data, width, polynomial):
    """Least significant bit first, preset with ones, complemented."""
    ones = (1 << width) - 1
    r = ones
    for byte in data:
        r ^= byte
        for _ in range(8):
            r = r >> 1 ^ (polynomial if r & 1 else 0)
    return r ^ ones


def native_icrc(frame):
    """IBTA 7.8.1, over LRH to pad."""
    masked = bytearray(frame)
    bth = 8
    if frame[1] & 3 == 3:
        masked[0:8] = b"\xff" * 8
        masked[8] |= 0x0F
        masked[9:12] = b"\xff" * 3
        masked[15] = 0xFF
        bth = 48
    else:
        masked[0] |= 0xF0
    masked[bth + 4] = 0xFF
    return bitwise_crc(masked, 32, 0xEDB88320)


def rocev2_icrc6(packet):
    """Annex A17.3.3 for IPv6, which scapy 2.5 has not: the IPv6 packet without its ICRC."""
    masked = bytearray(packet)
    masked[0] |= 0x0F
    masked[1:4] = b"\xff" * 3
    masked[7] = 0xFF
    masked[46:48] = b"\xff\xff"
    masked[52] = 0xFF
    return bitwise_crc(b"\xff" * 8 + bytes(masked), 32, 0xEDB88320)


class Referees(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        subprocess.run([MAKE_FRAMES, cls.directory.name], check=True)
        with open(cls.path("frames.json")) as f:
            frames = json.load(f)
        cls.roce = [f for f in frames if f["file"] == "roce.pcap"]
        cls.native = [f for f in frames if f["file"] == "native.pcap"]

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.directory.name, name)

    @classmethod
    def roce_packets(cls, v6):
        reader = RawPcapReader(cls.path("roce.pcap"))
        packets = [data for data, _ in reader]
        reader.close()
        return [(f, p) for f, p in zip(cls.roce, packets) if f["v6"] == v6]

    def compare(self, frame, seen, table):
        for member, field in table.items():
            if member in frame:
                self.assertNotEqual(seen[field], "", "%s: no %s" % (frame["name"], field))
                self.assertEqual(number(seen[field]), frame[member],
                                 "%s: %s" % (frame["name"], field))

    def compare_transport(self, frame, seen):
        name = "%s of transport %d" % (frame["name"], frame["transport"])
        self.assertEqual(seen["_ws.malformed"], "", name)
        self.assertEqual(number(seen["infiniband.bth.tver"]), 0)
        self.compare(frame, seen, BTH_FIELDS)
        pad = "00" * frame["pad"]
        if opaque_to_tshark(frame):
            rest = self.opaque(frame) + frame["payload"] + pad + self.crcs(frame)
            self.assertEqual(seen["infiniband.vendor"].replace(":", ""), rest, name)
            return
        self.compare(frame, seen, EXTENSION_FIELDS)
        for member, field in BYTES_FIELDS.items():
            if member in frame:
                self.assertEqual(seen[field].replace(":", ""), "%08x" % frame[member], name)
        self.assertEqual(seen["data.data"], frame["payload"] + pad, name)
        icrc = number(seen["infiniband.invariant.crc"])
        self.assertEqual("%08x" % icrc, self.crcs(frame)[:8], name)

    def crcs(self, frame):
        return frame["icrc"] if "icrc" in frame else frame["frame"][-12:]

    def opaque(self, f):
        """The extension headers that tshark does not know, as the annexes have them."""
        parts = []
        if "xrcsrq" in f:
            parts.append(struct.pack("!I", f["xrcsrq"]))
        if "sel" in f:
            parts.append(struct.pack("!I", f["sel"] << 4 | f["plt"]))
        if "va" in f:
            parts.append(struct.pack("!QI", f["va"], f["rkey"]))
        if "dmalen" in f:
            parts.append(struct.pack("!I", f["dmalen"]))
        if "swap" in f:
            parts.append(struct.pack("!QQ", f["swap"], f["compare"]))
        if "syndrome" in f:
            parts.append(struct.pack("!I", f["syndrome"] << 24 | f["msn"]))
        if "original" in f:
            parts.append(struct.pack("!Q", f["original"]))
        for last in ("imm", "ieth"):
            if last in f:
                parts.append(struct.pack("!I", f[last]))
        return b"".join(parts).hex()

    def test_there_is_a_frame_for_every_opcode(self):
        seen = {f["opcode"] for f in self.roce}
        rc = set(range(21)) | {22, 23, 28, 29}
        others = {0x20 + o for o in range(12)} | {0x64, 0x65, 0x81} | {0xA0 + o for o in rc}
        self.assertEqual(seen, rc | others)
        self.assertEqual({f["pad"] for f in self.roce}, {0, 1, 2, 3})
        self.assertEqual({f["tos"] & 3 for f in self.roce}, {0, 1, 2, 3})
        self.assertGreater(len({f["id"] for f in self.roce}), 3)

    def test_C59_tshark_sees_what_was_sent_over_rocev2(self):
        decoded = tshark(self.path("roce.pcap"))
        self.assertEqual(len(decoded), len(self.roce))
        for frame, seen in zip(self.roce, decoded):
            self.compare_transport(frame, seen)
            self.assertEqual(number(seen["udp.srcport"]), frame["source_port"])
            if frame["v6"]:
                self.assertEqual(number(seen["ipv6.tclass"]), frame["tos"])
                self.assertEqual(seen["udp.checksum.status"], "1")  # good
            else:
                self.compare(frame, seen, {k: IP_FIELDS[k] for k in ("id", "tos")})
                self.assertEqual(seen["ip.checksum.status"], "1")
                self.assertEqual(number(seen["ip.flags.df"]), 1)

    def test_C59_tshark_sees_what_was_sent_over_native_infiniband(self):
        decoded = tshark(self.path("native.pcap"))
        self.assertEqual(len(decoded), len(self.native))
        for frame, seen in zip(self.native, decoded):
            self.compare(frame, seen, LINK_FIELDS)
            self.assertEqual(number(seen["infiniband.lrh.lnh"]), 3 if "tclass" in frame else 2)
            self.assertEqual(4 * number(seen["infiniband.lrh.pktlen"]),
                             len(frame["frame"]) // 2 - 2)
            self.compare_transport(frame, seen)

    def test_C59_scapy_computes_the_same_icrc_over_ipv4(self):
        count = 0
        for frame, data in self.roce_packets(v6=False):
            bth = IP(data)[BTH]
            self.assertIsInstance(bth.underlayer, UDP)
            self.assertEqual((bth.opcode, bth.fecn, bth.becn, bth.resv6, bth.dqpn, bth.psn),
                             (frame["opcode"], frame["fecn"], frame["becn"], 0, frame["destqp"],
                              frame["psn"]))
            self.assertEqual(bth.compute_icrc(None).hex(), frame["icrc"], frame["name"])
            self.assertEqual(data[-4:].hex(), frame["icrc"])
            count += 1
        self.assertEqual(2 * count, len(self.roce))

    def test_C59_icrc_over_ipv6(self):
        for frame, data in self.roce_packets(v6=True):
            self.assertEqual(struct.pack("<I", rocev2_icrc6(data[:-4])), data[-4:], frame["name"])

    def test_C59_native_crcs(self):
        # The reference itself against the sample packet of IBTA 7.8.3.
        sample = bytes.fromhex("7012375c000e17d20a2024870087b1b3000dec2a01710a1c015d400238f27a05"
                               "0000000ebb884d85fd5cfba4728bc0690ed40000")
        self.assertEqual(struct.pack("<I", native_icrc(sample)).hex(), "9625b75a")
        for frame in self.native:
            data = bytes.fromhex(frame["frame"])
            self.assertEqual(struct.pack("<I", native_icrc(data[:-6])), data[-6:-2], frame["name"])
            vcrc = bitwise_crc(data[:-2], 16, 0xD008)
            self.assertEqual(struct.pack("<H", vcrc), data[-2:], frame["name"])


if __name__ == "__main__":
    if BTH is None or shutil.which("tshark") is None:
        print("SKIP: needs tshark and scapy (Debian: tshark, python3-scapy)")
        sys.exit(77)
    MAKE_FRAMES = sys.argv.pop(1)
    unittest.main()
