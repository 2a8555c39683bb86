def patch_legacy_loader(m,p): return {}
def patch_reader(m,p): return {}
