"""What a call takes, known before it runs, and plans that take less.

dry_run       the driver's road on meta tensors
independence  along which axes results are independent
search        the cheapest plan within a budget
"""
